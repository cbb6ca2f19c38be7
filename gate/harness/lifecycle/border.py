"""Records the state at the border between two runs: digests, and for single numbers the number.

An interrupted run records it when it is ended. A resumed run records each optimizer, and the model
that it trains, before that optimizer's first step: until then nothing has touched the loaded state.
If optimizers step one after another in each iteration, a later one is recorded once the first has
stepped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import torch

from ..output import Output, Problems
from ..plain_tensors import UnsupportedTensorError, plain_parts, type_and_shape, use_bytes
from ..recording.observer import random_states
from ..recording.recorder import Recorder
from ..tensor_digests import finish_all, start_parameters

MAX_LEAVES: Final = 4000
MAX_NAME: Final = 300
# kinds of names whose second part is an optimizer's number
OF_OPTIMIZERS: Final = frozenset(("optimizer", "parameter"))


class BorderLeaf(NamedTuple):
    """One value of the state: its digest, whether it is a tensor of zeros, or its single number."""

    digest: str
    zero: bool
    number: float | None


class Border:
    """Collects the values recorded so far, each under its place in the recorder."""

    def __init__(self) -> None:
        self._leaves: dict[tuple[str, int, str], BorderLeaf] = {}
        self._already_named: set[tuple[str, int]] = set()
        self._optimizers = 0
        self._parameters: list[str] = []
        self._random: dict[str, str] = {}

    def tells(self, recorder: Recorder) -> bool:
        """Whether every optimizer that the recorder knows has been recorded, or at least tried."""
        return 0 < len(recorder.optimizers) <= self._optimizers

    def write(
        self,
        output: Output,
        standing: Callable[[], Mapping[str, torch.Tensor]],
        recorder: Recorder,
        problems: Problems,
        **about: object,
    ) -> None:
        """Write the document, with everything in `standing` that was not recorded before.

        `standing` returns the whole present state by name. `parameters` is the digest in the step's
        fingerprint of that name. If several optimizers step in the first iteration, it is one
        digest over theirs.
        """
        earlier, self._optimizers = self._optimizers, len(recorder.optimizers)
        if not earlier:
            self._random = random_states(problems)
        own = _own_parameters(recorder) if earlier else None
        # an optimizer that first appears in a later step may not exist in the interrupted run
        begins = not earlier or recorder.steps <= 1
        with torch.no_grad():
            for optimizer in recorder.optimizers[earlier:] if begins else ():
                ordered = recorder.order.parameters(optimizer)
                self._parameters += finish_all([start_parameters(ordered, problems.leave_out)])
            named = self._named(standing(), recorder, own)
        numbers = {name: leaf.number for name, leaf in named.items() if leaf.number is not None}
        document = {
            "pid": output.pid,
            "rank": output.rank,
            "steps": recorder.steps,
            "optimizers": len(recorder.optimizers),
            "parameters": self._joined(recorder.optimizer_numbers),
            "random": self._random,
            "digests": {name: leaf.digest for name, leaf in named.items()},
            "zero": [name for name, leaf in named.items() if leaf.zero],
            "numbers": {name: number.hex() for name, number in numbers.items()},
            **about,
        }
        with problems.noting("writing the state of the run"):
            output.write_document("boundary", document)

    def _named(
        self, tensors: Mapping[str, torch.Tensor], recorder: Recorder, own: frozenset[str] | None
    ) -> dict[str, BorderLeaf]:
        """Return the value of each name; values recorded before are not read again.

        `own` are names of parameters. If a model is recorded late, only these are, since its
        buffers may have seen one batch more.
        """
        optimizers = _places(recorder.optimizer_numbers)
        places = {"model": _places(recorder.module_numbers)} | dict.fromkeys(
            OF_OPTIMIZERS, optimizers
        )
        named: dict[str, BorderLeaf] = {}
        new = set()
        for name, tensor in list(tensors.items())[:MAX_LEAVES]:
            kind, number, rest = (*name.split("/", 2), "", "")[:3]
            # Numbers in names can change when another optimizer first steps. Places in the recorder
            # do not, so values are kept by place.
            place = int(number) if number.isdecimal() else 0
            place = places[kind].get(place, place) if kind in places else place
            owner, key = (kind, place), (kind, place, rest)
            if owner not in self._already_named and len(name) <= MAX_NAME:
                new.add(owner)
                if kind != "model" or own is None or name in own:
                    with suppress(UnsupportedTensorError):
                        self._leaves[key] = _leaf(tensor)
            if key in self._leaves:
                named[name] = self._leaves[key]
        self._already_named |= new
        return named

    def _joined(self, numbers: list[int]) -> str:
        if len(self._parameters) < 2:  # noqa: PLR2004 - of an only one it is that of its steps
            return "".join(self._parameters)
        pairs = sorted(zip(numbers, self._parameters, strict=False))
        joined = " ".join(digest for _, digest in pairs)
        return f"sha256:{hashlib.sha256(joined.encode()).hexdigest()}"


def _places(numbers: Iterable[int]) -> dict[int, int]:
    """Map the number in names to the place in the recorder."""
    return {number: place for place, number in enumerate(numbers)}


def _own_parameters(recorder: Recorder) -> frozenset[str]:
    return frozenset(
        f"model/{number}/{name}"
        for module, number in zip(recorder.modules, recorder.module_numbers, strict=True)
        for name, _ in module.named_parameters()
    )


def _leaf(tensor: torch.Tensor) -> BorderLeaf:
    digest = hashlib.sha256()
    for path, part in plain_parts(tensor):
        digest.update(f"{path} {type_and_shape(part)}\n".encode())
        use_bytes(part.detach(), digest.update)
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    is_single = plain and tensor.numel() == 1
    return BorderLeaf(
        digest=digest.hexdigest()[:32],
        zero=plain and not is_single and not bool(tensor.any()),
        number=float(tensor) if is_single and not tensor.is_complex() else None,
    )
