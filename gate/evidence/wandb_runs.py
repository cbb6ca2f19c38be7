"""Read the metrics of an offline Weights & Biases run, without its client; nothing is executed.

The file `run-ID.wandb` is a log in LevelDB's format (its `doc/log_format.md`) after a header of
seven bytes: `:W&B`, a magic number and a version. The log consists of blocks of 32 KiB, and a
record that does not fit is split into pieces. Each piece has a checksum (CRC-32 of its type and
data), a length of two bytes and its type. The data of all pieces is a message `Record` of
`wandb_internal.proto`.

Fields by number: a record may have a history (2), which has items (1) and a step (2) with a number
(1); an item has a key (1) or the parts of a nested key (2), and its value as JSON (16).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from gate.checkpoint.untrusted_files import UntrustedFile, open_untrusted
from gate.errors import EvidenceError, MissingOutputError
from gate.evidence.client_logs import (
    ONE_RUN_HINT,
    ClientNumbers,
    logged_names,
    refuse_link_out,
)
from gate.evidence.metric_series import FlatValues, ReadMetrics
from gate.evidence.run_evidence import MetricSource, WhyPassedOver
from gate.evidence.tensorboard import BYTES, VARINT, MalformedEventError, protobuf_fields
from gate.system.files.port import Files
from gate.text.untrusted_text import plain_text

BLOCK_BYTES: Final = 32 * 1024
FILE_HEADER: Final = struct.Struct("<4sHB")
IDENT: Final = b":W&B"
MAGIC: Final = 0xBEE1
PIECE_HEADER: Final = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
BEGINS: Final = frozenset((FULL, FIRST))
# enough for a record of a few thousand numbers; longer records (configuration, summaries) are
# skipped
MAX_RECORD_BYTES: Final = 256 * 1024
MAX_PIECES: Final = 2_000_000
MAX_FILE_BYTES: Final = 256 * 1024 * 1024
# number and wire type of the field with the history
HISTORY: Final = (2, BYTES)
RUN_FOLDERS: Final = ("offline-run-", "run-")
# keys of the client itself begin with this: times, and the step, which the record has too
OWN_KEYS: Final = "_"
CUT_HINT: Final = "End the run with `run.finish()`; a process that is killed leaves half a record."
OFFLINE_HINT: Final = (
    "Set `train.env: {WANDB_MODE: offline}`, and check train.metrics.wandb: the path is relative "
    "to train.workdir, and the client writes below `wandb` by default."
)


def wandb_metrics(
    files: Files, folder: Path, shown: str, keys: tuple[str, ...], *, required: bool = True
) -> ReadMetrics:
    """Return each logged number whose name matches a pattern, as `wandb.<name>` in float64.

    Objects and lists are flattened like those of a metrics file. Text, media and values that are
    too long, nested too deep, too wide or too many are skipped, and listed by name.

    Raises `EvidenceError` for a damaged file, a repeated step and several runs. If metrics are
    `required`, raises `MissingOutputError` if there is no run or no matching number.
    """
    run_files = _run_files(files, folder, shown)
    if len(run_files) > 1:
        raise EvidenceError(
            f"{shown}: contains {len(run_files)} runs of the client", hint=ONE_RUN_HINT
        )
    numbers = ClientNumbers(MetricSource.WANDB, shown, keys)
    for path in run_files:
        name = plain_text(f"{shown}/{path.relative_to(folder)}")
        with open_untrusted(files, path, name, max_bytes=MAX_FILE_BYTES) as opened:
            for step, key, value, where in _numbers(opened, numbers.values):
                numbers.add(opened, where, step, key, value)
    if required and not run_files:
        raise MissingOutputError(f"{shown}: there is no offline run", hint=OFFLINE_HINT)
    return numbers.read(shown, required=required)


def _run_files(files: Files, folder: Path, shown: str) -> list[Path]:
    """Return the log files of all runs, in the order of their folders.

    `latest-run` is a link to one of the folders, and is ignored.
    """
    paths = []
    for name in logged_names(files, folder, shown):
        if name.startswith(RUN_FOLDERS) and files.link_target(folder / name) is not None:
            refuse_link_out(files, folder / name, folder, shown)
        elif name.startswith(RUN_FOLDERS):
            inside = logged_names(files, folder / name, f"{shown}/{name}")
            paths += [
                folder / name / file_name for file_name in inside if file_name.endswith(".wandb")
            ]
    return sorted(paths)


def _numbers(opened: UntrustedFile, values: FlatValues) -> Iterator[tuple[int, str, float, str]]:
    """Yield step, name, number and place of everything that was logged, in file order."""
    for offset, data, whole in log_records(opened):
        where = f"the record at byte {offset}"
        if not whole:
            if _begins_history(data):
                values.pass_over(where, WhyPassedOver.RECORD)
            continue
        try:
            for number, wire, _, history in protobuf_fields(data):
                if (number, wire) == HISTORY:
                    for step, key, value in _history(history, values):
                        yield step, key, value, where
        # `json.loads` recurses, and the run chose how deep its values are nested
        except (MalformedEventError, ValueError, OverflowError, RecursionError) as error:
            raise opened.fault(f"{where} is not a record of the client") from error


def log_records(opened: UntrustedFile) -> Iterator[tuple[int, bytes, bool]]:
    """Yield offset and data of each record, and whether the data is complete.

    Only the first part of a long record is returned. Raises `EvidenceError` for an unknown header,
    a wrong checksum, a piece out of order, and a file that ends inside a record.
    """
    head = opened.read_at(0, min(FILE_HEADER.size, opened.size_bytes))
    if len(head) < FILE_HEADER.size or FILE_HEADER.unpack(head)[:2] != (IDENT, MAGIC):
        raise opened.fault("is not an offline run of Weights & Biases", hint=OFFLINE_HINT)
    offset, began, record, length = FILE_HEADER.size, -1, bytearray(), 0
    for _ in range(MAX_PIECES):
        left = BLOCK_BYTES - offset % BLOCK_BYTES
        if left < PIECE_HEADER.size:
            # too small for a header, so it is filled with zeros up to the next block
            offset += left
        if offset >= opened.size_bytes:
            if began >= 0:
                raise opened.fault(f"the record at byte {began} is truncated", hint=CUT_HINT)
            return
        kind, data, end = _piece(opened, offset)
        # A record may begin only outside another one, and continue only inside. Anything else means
        # that data is missing.
        if (kind in BEGINS) != (began < 0):
            raise opened.fault(f"the piece at byte {offset} is out of order", hint=CUT_HINT)
        began = offset if began < 0 else began
        length += len(data)
        # a long record is kept only up to the limit, so that memory is bounded
        record += data[: MAX_RECORD_BYTES - len(record)]
        if kind in {FULL, LAST}:
            yield began, bytes(record), length <= MAX_RECORD_BYTES
            began, record, length = -1, bytearray(), 0
        offset = end
    raise opened.fault(f"more than {MAX_PIECES:,} records", hint="Log less often.")


def _piece(opened: UntrustedFile, offset: int) -> tuple[int, bytes, int]:
    """Return type and data of the piece at `offset`, and the offset after it."""
    rest = min(BLOCK_BYTES - offset % BLOCK_BYTES, opened.size_bytes - offset)
    if rest < PIECE_HEADER.size:
        raise opened.fault(f"the record at byte {offset} is truncated", hint=CUT_HINT)
    checksum, length, kind = PIECE_HEADER.unpack(opened.read_at(offset, PIECE_HEADER.size))
    begin = offset + PIECE_HEADER.size
    if kind not in {FULL, FIRST, MIDDLE, LAST} or length > rest - PIECE_HEADER.size:
        raise opened.fault(f"the record at byte {offset} is truncated", hint=CUT_HINT)
    data = opened.read_at(begin, length)
    if zlib.crc32(data, zlib.crc32(bytes((kind,)))) != checksum:
        raise opened.fault(f"the record at byte {offset} has a wrong checksum", hint=CUT_HINT)
    return kind, data, begin + length


def _begins_history(part: bytes) -> bool:
    """Return whether the first part of a record contains logged values."""
    with suppress(MalformedEventError):
        return any(
            protobuf_field[:2] == HISTORY for protobuf_field in protobuf_fields(part, cut=True)
        )
    return False


def _history(message: bytes, values: FlatValues) -> Iterator[tuple[int, str, float]]:
    """Yield step, name and value of each number in one call of `run.log`."""
    step, items = 0, []
    for number, wire, _, data in protobuf_fields(message):
        if (number, wire) == (1, BYTES):
            items.append(data)
        elif (number, wire) == (2, BYTES):
            steps = [value for n, w, value, _ in protobuf_fields(data) if (n, w) == (1, VARINT)]
            step = steps[-1] if steps else 0
    for item in items:
        parts, text = list[str](), ""
        for number, wire, _, data in protobuf_fields(item):
            if (number, wire) in {(1, BYTES), (2, BYTES)}:
                parts.append(data.decode("utf-8"))
            elif (number, wire) == (16, BYTES):
                text = data.decode("utf-8")
        key = ".".join(filter(None, parts))
        if key and not key.startswith(OWN_KEYS):
            yield from ((step, *numbers) for numbers in values.numbers(key, json.loads(text)))
