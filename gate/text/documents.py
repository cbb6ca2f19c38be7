"""Documents in and out: all faults of a file at once, each with the path of its key."""

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

# a typing error or two of a word; what is further away is another word
NEAR = 0.6
# no known key is longer, and the time grows with the square
MAX_KEY = 80


def nearest_key(model: type[BaseModel], path: tuple[str | int, ...]) -> str:
    """`; did you mean max_steps?` for the unknown key at the end of a path, or the empty text.

    Keys that are equally near are all named.
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
    """The keys that stand beside the last part of a path, in the order of the document."""
    return tuple(
        field.alias or name
        for schema in _models_at(model, path)
        for name, field in schema.model_fields.items()
    )


def description_of(model: type[BaseModel], path: tuple[str | int, ...]) -> str:
    """What the model says of the last key of a path, or the empty text."""
    keys = [part for part in path if isinstance(part, str)]
    fields = (
        field
        for schema in _models_at(model, path)
        for name, field in schema.model_fields.items()
        if keys[-1:] in ([name], [field.alias])
    )
    return next((field.description for field in fields if field.description), "")


def _models_at(model: type[BaseModel], path: tuple[str | int, ...]) -> tuple[type[BaseModel], ...]:
    """The models that the last part of a path may be a key of.

    A part that is no key of a model is a place in a list, or a key of a mapping: what is below is
    the same models.
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
    """Every model that an annotation holds: itself, an alternative, an item, a value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


Record = TypeVar("Record", bound=Document)
T = TypeVar("T")
KeyPath = tuple[str | int, ...]
MAX_FAULTS = 40
# few enough to hold, and enough that writing them is cheap
CHUNK_CHARACTERS: Final = 64 * 1024


class RecordForm(Generic[T]):
    """How records go from one process of the gate to another, and are checked there.

    What was not set stays so: some settings mean another thing where they were left out.
    """

    def __init__(self, kind: Any) -> None:  # noqa: ANN401 - a type, or a union of types
        """The form of records of one kind, or of a tuple or union of kinds."""
        self._adapter: TypeAdapter[T] = TypeAdapter(kind)

    def dump_json(self, instance: T, /) -> bytes:
        """The record as JSON."""
        return self._adapter.dump_json(instance, exclude_unset=True, context=PACKED)

    def validate_json(self, data: bytes, /) -> T:
        """The record again; `ValueError` for what has another form."""
        return self._adapter.validate_json(data, context=PACKED)


def read_document(
    model: type[Record],
    data: bytes,
    source: str,
    *,
    max_bytes: int = MAX_BYTES,
    context: str | None = None,
) -> Record:
    """Parse and check one JSON document; `context` is as `Rows` knows it.

    Raises `DocumentError` with one line for each fault; a wrong `schema_version` comes first,
    because every other fault follows from it.
    """
    # our rules first: pydantic's own parser keeps the last of two equal keys, and takes NaN
    check_schema_version(model, outline_of_json(data, source, max_bytes=max_bytes), source)
    try:
        # by way of JSON and not of Python values: pydantic's strict mode
        # takes a list for a tuple, or a text for an enum, in JSON alone
        return model.model_validate_json(data, context=context)
    except ValidationError as error:
        raise DocumentError(
            f"{source}: {count(error.error_count(), 'error')}",
            hint="Create the file again with repro-gate, or restore it from version control.",
            details=fault_lines(error, lambda _path: "", model),
        ) from error


def check_schema_version(model: type[Document], value: object, source: str) -> None:
    """Tell a file of another version apart from a broken one."""
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
    """One line a fault: key path, place (from `where`), what is wrong.

    `model` is what was read: its keys that are nearest to an unknown one are named.
    """
    return lines_of(error.errors(include_url=False), where, model)


def lines_of(
    faults: Sequence[ErrorDetails], where: Callable[[KeyPath], str], model: type[Document]
) -> tuple[str, ...]:
    """The same of faults that are put in other words."""
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
    """The document as reviewable JSON; reading it back gives an equal record."""
    return b"".join(document_chunks(document))


def document_chunks(document: Document) -> Iterator[bytes]:
    """The same bytes one after the other, so that no more of a long document is in memory."""
    # not as JSON: `Rows` are left as they are, and all else is written in the same words
    held: list[str] = []
    characters = 0
    for piece in reviewable_pieces(document.model_dump()):
        held.append(piece)
        characters += len(piece)
        if characters >= CHUNK_CHARACTERS:
            yield "".join(held).encode("utf-8")
            held, characters = [], 0
    yield "".join(held).encode("utf-8")
