"""Reads and writes documents; all faults of a file are reported at once, each with its key path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, Generic, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gate.errors import DocumentError
from gate.text.document import Document
from gate.text.json_text import PACKED, reviewable_pieces
from gate.text.phrases import count, key_path, without_pydantic
from gate.text.strict_json import MAX_BYTES, outline_of_json

# similarity of a word with a typing error or two; below that it is a different word
NEAR = 0.6
# no known key is longer, and the time grows with the square of the length
MAX_KEY = 80


def nearest_key(model: type[BaseModel], path: tuple[str | int, ...]) -> str:
    """Return `; did you mean max_steps?` for the unknown key at the end of a path, or nothing.

    Equally near keys are all named.
    """
    key = str(path[-1])[:MAX_KEY]
    likeness = {
        known: SequenceMatcher(None, key, known).ratio() for known in known_keys(model, path)
    }
    best = max(likeness.values(), default=0.0)
    if best < NEAR:
        return ""
    return f"; did you mean {' or '.join(name for name, near in likeness.items() if near == best)}?"


def known_keys(model: type[BaseModel], path: tuple[str | int, ...]) -> tuple[str, ...]:
    """Return the keys that are valid in the place of a path's last part, in document order."""
    return tuple(
        field.alias or name
        for schema in _models_at(model, path)
        for name, field in schema.model_fields.items()
    )


def description_of(model: type[BaseModel], path: tuple[str | int, ...]) -> str:
    """Return the model's description of the last key of a path, or an empty text."""
    keys = [part for part in path if isinstance(part, str)]
    fields = (
        field
        for schema in _models_at(model, path)
        for name, field in schema.model_fields.items()
        if keys[-1:] in ([name], [field.alias])
    )
    return next((field.description for field in fields if field.description), "")


def _models_at(model: type[BaseModel], path: tuple[str | int, ...]) -> tuple[type[BaseModel], ...]:
    """Return the models of which the last part of a path may be a key.

    A part that is no key of a model is a place in a list or a key of a mapping. The models below it
    are then the same.
    """
    models: tuple[type[BaseModel], ...] = (model,)
    for part in path[:-1]:
        below = [
            inner
            for schema in models
            for name, field in schema.model_fields.items()
            if part in (name, field.alias)
            for inner in _models(field.annotation)
        ]
        models = tuple(below) or models
    return models


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield every model in an annotation: itself, an alternative, an item, a value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


Record = TypeVar("Record", bound=Document)
T = TypeVar("T")
KeyPath = tuple[str | int, ...]
MAX_FAULTS = 40
# small enough to keep in memory, large enough that few writes are needed
CHUNK_CHARACTERS: Final = 64 * 1024


class RecordForm(Generic[T]):
    """Serialises records between two processes of the gate, and checks them on arrival.

    A field that was not set stays unset, because some settings have another meaning when left out.
    """

    def __init__(self, kind: Any) -> None:  # noqa: ANN401 - a type, or a union of types
        """`kind` is one kind of records, or a tuple or union of kinds."""
        self._adapter: TypeAdapter[T] = TypeAdapter(kind)

    def dump_json(self, instance: T, /) -> bytes:
        """Return the record as JSON."""
        return self._adapter.dump_json(instance, exclude_unset=True, context=PACKED)

    def validate_json(self, data: bytes, /) -> T:
        """Parse a record; raises `ValueError` if it has another form."""
        return self._adapter.validate_json(data, context=PACKED)


def read_document(
    model: type[Record],
    data: bytes,
    source: str,
    *,
    max_bytes: int = MAX_BYTES,
    context: str | None = None,
) -> Record:
    """Parse and check one JSON document; `context` is what `Rows` expects.

    Raises `DocumentError` with one line for each fault. A wrong `schema_version` is reported alone,
    because every other fault would follow from it.
    """
    # our rules first: pydantic's own parser keeps the last of two equal keys, and accepts NaN
    check_schema_version(model, outline_of_json(data, source, max_bytes=max_bytes), source)
    try:
        # validate JSON and not Python values: only from JSON does pydantic's strict mode accept a
        # list for a tuple, or a text for an enum
        return model.model_validate_json(data, context=context)
    except ValidationError as error:
        raise DocumentError(
            f"{source}: {count(error.error_count(), 'error')}",
            hint="Create the file again with repro-gate, or restore it from version control.",
            details=fault_lines(error, lambda _path: "", model),
        ) from error


def check_schema_version(model: type[Document], value: object, source: str) -> None:
    """Raise `DocumentError` for a file of another version, so that it is not called broken."""
    field = model.model_fields.get("schema_version")
    if field is None or not isinstance(value, dict):
        return
    version = value.get("schema_version")
    if version != field.default:
        raise DocumentError(
            f"{source}: schema version {str(version)[:60]!r}, this repro-gate reads "
            f"{field.default!r}",
            hint="Use the repro-gate version that wrote it, or record the file again.",
        )


def fault_lines(
    error: ValidationError, where: Callable[[KeyPath], str], model: type[Document]
) -> tuple[str, ...]:
    """Return one line for each fault: key path, place (from `where`), what is wrong.

    For an unknown key, the nearest keys of `model` are named.
    """
    return lines_of(error.errors(include_url=False), where, model)


def lines_of(
    faults: Sequence[ErrorDetails], where: Callable[[KeyPath], str], model: type[Document]
) -> tuple[str, ...]:
    """Return the lines of `fault_lines` for faults that the caller has reworded."""
    lines = tuple(
        f"{where(fault['loc'])}{key_path(fault['loc'])}: {_wrong(fault, model)}"
        for fault in faults[:MAX_FAULTS]
    )
    rest = len(faults) - MAX_FAULTS
    return (*lines, f"and {rest} more") if rest > 0 else lines


def _wrong(fault: ErrorDetails, model: type[Document]) -> str:
    if fault["type"] == "missing":
        return "is required"
    if fault["type"] == "extra_forbidden":
        return f"is not a known key{nearest_key(model, fault['loc'])}"
    return without_pydantic(fault["msg"])


def write_document(document: Document) -> bytes:
    """Return the document as reviewable JSON; reading it gives an equal record."""
    return b"".join(document_chunks(document))


def document_chunks(document: Document) -> Iterator[bytes]:
    """Yield the same bytes in chunks, so that a long document is never in memory as a whole."""
    # not in pydantic's JSON mode: `Rows` then stay as they are, and all else is written the same
    held: list[str] = []
    characters = 0
    for piece in reviewable_pieces(document.model_dump()):
        held.append(piece)
        characters += len(piece)
        if characters >= CHUNK_CHARACTERS:
            yield "".join(held).encode("utf-8")
            held, characters = [], 0
    yield "".join(held).encode("utf-8")
