"""Writes one record for each operator call, in the order of execution, within limits.

Beyond a limit nothing more is recorded, and the last line names that limit. An error in the tracer
is counted and never reaches the training.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from ..operator_audit import ForwardLines
from ..output import Output
from . import places
from .arguments import (
    FROM_OUTSIDE,
    MESSAGES,
    REBINDS,
    RESIZES,
    UNINITIALISED,
    Given,
    OperatorSignature,
    Storages,
    describe,
    generator_state,
    given,
    raw_settings,
    results,
    settings_now,
    signature_of,
    written_arguments,
)
from .places import ExecutedLines, RunningModules

if TYPE_CHECKING:
    from ..output import Output


MAX_CALLS: Final = 20_000
MAX_BYTES: Final = 32 * 1024 * 1024
MAX_LINE: Final = 60_000
MAX_SECONDS: Final = 600.0
MAX_GIVEN: Final = 24
BATCH: Final = 200
NOT_TRACED: Final = ("profiler::", "prim::")
# namespaces of collectives, whose results depend on other ranks and may arrive after the call
COLLECTIVE: Final = (MESSAGES, "_c10d_functional", "c10d_functional", "symm_mem")
# The plain functions: every call uses them, and the harness hooks what the script reads of the
# clock.
_seconds = getattr(time.perf_counter, "__wrapped__", time.perf_counter)
_own_pid = getattr(os.getpid, "__wrapped__", os.getpid)
# one encoder for all lines: `json.dumps` creates a new one for each call with `allow_nan=False`
_encoded = json.JSONEncoder(allow_nan=False).encode
# replaces these fields in a record that is too long
CUT: Final[dict[str, Any]] = {"inputs": [], "outputs": [], "arguments": "", "whole": False}


class OpenCall(NamedTuple):
    """A call in progress: what is known before the operator runs.

    `origin` says where it takes values from that no operator made. `sizes` are the element counts
    of the tensors that it will write. `state` is a digest of the generator that it will draw from.
    """

    signature: OperatorSignature
    place: places.CallPlace
    inputs: list[dict[str, Any]]
    written: list[Given]
    sizes: list[int]
    arguments: str
    whole: bool
    state: str
    origin: str
    began: float


class Tracer:
    """Records one process's calls from step `first` on; `step` returns the step in progress."""

    def __init__(
        self,
        output: Output,
        step: Callable[[], int],
        first: int,
        modules: RunningModules,
        lines: ExecutedLines | None,
    ) -> None:
        self._output = output
        self._pid = output.pid
        self._step = step
        self._first = first
        self._modules = modules
        self._lines = lines
        self._storages = Storages()
        self._forward = ForwardLines()
        self._lock = threading.RLock()
        self._waiting: list[str] = []
        self._calls = self._bytes = self._unread = 0
        self._seconds = 0.0
        self._ended = ""
        self._settings: dict[str, str] = {}
        self._raw: tuple[Any, ...] | None = None

    def begin(self, func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> OpenCall | None:
        """Record the inputs of a call that is about to run; None if it is not to be traced."""
        began = _seconds()
        if self._ended or self._step() < self._first:
            return None
        signature = signature_of(func)
        name = signature.operator
        # a forked child holds its parent's records and would write them again, so it is not traced
        if name.startswith(NOT_TRACED) or _own_pid() != self._pid:
            return None
        place = places.call_place(places.caller(2))
        if place is None:
            return None
        outside = name in FROM_OUTSIDE or signature.storage
        # autograd's threads and the script's share the storages and the list of lines
        with self._lock:
            tensors, words, whole = given(signature, args, named)
            only_written = signature.overwritten
            inputs = [
                self._input(
                    argument, viewed=signature.view, overwritten=argument.name in only_written
                )
                for argument in tensors[:MAX_GIVEN]
            ]
            outputs = written_arguments(signature, args, named)
            return OpenCall(
                signature=signature,
                place=place,
                inputs=inputs,
                written=outputs,
                sizes=[tensor.numel() for output in outputs for tensor in output.tensors],
                arguments=words,
                whole=whole and len(tensors) <= MAX_GIVEN,
                state=generator_state(args, named) if signature.random else "",
                origin=places.storage_origin(places.caller(2)) if outside else "",
                began=began,
            )

    def _input(self, argument: Given, *, viewed: bool, overwritten: bool) -> dict[str, Any]:
        made, unset = self._storages.producers(argument.tensors)
        about = describe(argument, digest=not overwritten, viewed=viewed)
        return about | {"made_by": made, "unset_by": unset, "overwritten": overwritten}

    def end(self, call: OpenCall, result: Any, thread: int) -> None:
        """Write the record of a call that has run, and remember what it wrote."""
        with self._lock:
            if self._ended:
                return
            # settings are per thread; only the main thread's are recorded
            if thread == 0:
                self._note_settings()
            self._write(self._record(call, self._outputs(call, result), thread))
            self._seconds += _seconds() - call.began
            self._end_at_a_limit()

    def _outputs(self, call: OpenCall, result: Any) -> list[dict[str, Any]]:
        """Describe what the operator wrote and returned, with digests of what it computed."""
        seen = {id(tensor) for argument in call.written for tensor in argument.tensors}
        made = [
            argument
            for argument in results(result)
            if not all(id(tensor) in seen for tensor in argument.tensors)
        ]
        operator = call.signature.operator
        # a tensor that `resize_` enlarges has new elements that nothing has written
        grown = operator in RESIZES and call.sizes != [
            tensor.numel() for argument in call.written for tensor in argument.tensors
        ]
        unset = operator in UNINITIALISED or grown
        collective = operator.partition("::")[0] in COLLECTIVE
        view = call.signature.view or operator in REBINDS
        outputs = []
        for output in [*call.written, *made][:MAX_GIVEN]:
            # Not digested: uninitialised bytes, a view of them, and what a storage contains, since
            # it came from outside torch.
            hidden = view and (
                bool(self._storages.producers(output.tensors)[1])
                or self._storages.foreign(output.tensors)
            )
            read = not (unset or collective or call.origin or hidden)
            outputs.append(describe(output, digest=read, viewed=view, sample=True))
            if call.origin:
                self._storages.note_foreign(output.tensors, self._calls)
            else:
                self._storages.note(output.tensors, self._calls, unset=unset, view=view)
        return outputs

    def _note_settings(self) -> None:
        """Write torch's settings if they changed since the previous call."""
        try:
            raw = raw_settings()
        except Exception:
            raw = None
        # comparing the raw values is five times as fast as comparing the texts
        if raw is not None and raw == self._raw:
            return
        self._raw, now = raw, settings_now()
        if now != self._settings:
            self._settings = now
            line = {"kind": "settings", "call": self._calls, "settings": now}
            self._waiting.append(json.dumps(line))

    def _record(self, call: OpenCall, outputs: list[dict[str, Any]], thread: int) -> dict[str, Any]:
        node = torch._C._current_autograd_node()  # noqa: SLF001 - no public name
        place, module, phase = call.place, self._modules.path, call.place.phase or "forward"
        forward = ("", 0, "")
        if node is not None:
            forward, phase = self._forward.of(node), "backward"
            module = forward[2]
        else:
            self._forward.note(place, module)
        # In a backward pass the stack shows the line that started the pass. The operator belongs to
        # its forward line instead.
        own = phase != "backward" or place.own_backward
        return {
            "kind": "call",
            "number": self._calls,
            "step": self._step(),
            "operator": call.signature.operator[:120],
            "module": module,
            "phase": phase,
            "file": place.file if own else "",
            "line": place.line if own else 0,
            "forward_file": forward[0],
            "forward_line": forward[1],
            "thread": thread,
            "random": call.signature.random,
            "random_state": call.state,
            "compiled": place.compiled,
            "by_module": place.by_module and own,
            "view": call.signature.view,
            "arguments": call.arguments,
            "whole": call.whole and len(outputs) < MAX_GIVEN,
            "origin": call.origin,
            "inputs": call.inputs,
            "outputs": outputs,
        }

    def _write(self, record: dict[str, Any]) -> None:
        line = _encoded(record)
        if len(line) > MAX_LINE:
            self._unread += 1
            line = json.dumps(record | CUT)
        self._calls += 1
        self._bytes += len(line)
        self._waiting.append(line)
        # a worker that the script starts may learn its rank, and so its file's name, at its first
        # step
        if len(self._waiting) >= BATCH and self._step() > 1:
            self._flush()

    def failed(self) -> None:
        """Count a call that could not be recorded."""
        self._unread += 1

    def line_seen(self, file: str, line: int) -> None:
        """Note a line of the script that runs for the first time."""
        if self._lines is not None:
            self._lines.note(file, line, self._calls)

    def _end_at_a_limit(self) -> None:
        if self._calls >= MAX_CALLS:
            self.finish("calls")
        elif self._bytes >= MAX_BYTES:
            self.finish("bytes")
        elif self._seconds >= MAX_SECONDS:
            self.finish("time")

    def finish(self, why: str) -> None:
        """Write the waiting lines and the last line; later calls are not recorded."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._ended:
                return
            self._ended = why
            if self._lines is not None:
                self._waiting += [json.dumps(part) for part in self._lines.documents()]
            last = {"kind": "end", "why": why, "calls": self._calls, "unread": self._unread}
            self._waiting.append(json.dumps(last))
            self._flush()

    def _flush(self) -> None:
        data = "".join(f"{line}\n" for line in self._waiting).encode("ascii")
        self._waiting = []
        with self._output.path("trace", ".jsonl").open("ab", buffering=0) as file:
            file.write(data)
