"""Which variations a call asks for, and which of them this machine and these settings allow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from gate.errors import SettingsError
from gate.evidence.run_evidence import RunEvidence
from gate.isolation.modes import Isolation
from gate.settings.gate_settings import GateSettings
from gate.settings.variations import BY_NAME, GPU_INDEX, VARIATIONS, Variation
from gate.system.gpu import GpusSeen

SEPARATOR = ","
LIST_HINT = "`repro-gate shake --list` lists all names."
SHOWN_CHARACTERS = 60
VISIBLE = "CUDA_VISIBLE_DEVICES"
PAIR = 2
CARD = re.compile(r"[0-9]{1,3}|(?:GPU|MIG)-[0-9a-f-]{1,60}", re.ASCII)


def chosen_variations(only: str | None, skip: str | None) -> tuple[Variation, ...]:
    """All variations, or those that the two options leave, in the order of the list.

    Raises `SettingsError` for both options at once, for an unknown name, and where none is left.
    """
    if only is not None and skip is not None:
        raise SettingsError(
            "--only and --skip cannot stand together", hint="Name what is left with --only."
        )
    if only is not None:
        named = _names("--only", only)
        return tuple(variation for variation in VARIATIONS if variation.name in named)
    left_out = frozenset[str]() if skip is None else _names("--skip", skip)
    chosen = tuple(variation for variation in VARIATIONS if variation.name not in left_out)
    if not chosen:
        raise SettingsError("--skip names every variation: nothing is left", hint=LIST_HINT)
    return chosen


def _names(option: str, text: str) -> frozenset[str]:
    names = [name.strip() for name in text.split(SEPARATOR)]
    if not any(names):
        raise SettingsError(f"{option} names no variation", hint=LIST_HINT)
    for name in filter(None, names):
        if name not in BY_NAME:
            near = get_close_matches(name, BY_NAME, n=1)
            meant = f"Did you mean {near[0]}? " if near else ""
            raise SettingsError(
                f"{option} {name[:SHOWN_CHARACTERS]}: there is no such variation",
                hint=f"{meant}{LIST_HINT}",
            )
    return frozenset(filter(None, names))


def checked_budget(seconds: float | None) -> float | None:
    """The budget as given; `SettingsError` where it is no time at all."""
    if seconds is not None and not 0 < seconds < float("inf"):
        raise SettingsError(
            f"--budget {seconds:g}: must be more than 0 seconds",
            hint="Leave it out to try everything.",
        )
    return seconds


def why_not(variation: Variation, settings: GateSettings, reference: RunEvidence) -> str:
    """Why it cannot be varied for this training, or the empty text; the harness may find more."""
    train = settings.train
    for name in variation.owned_by_user:
        for key, names in (("train.env", train.env), ("train.pass_env", train.pass_env)):
            if name in names:
                return f"{key} sets {name}, so it is part of the training"
    if variation.on_gpu and not reference.environment.on_gpu:
        return "the training ran on the CPU"
    return ""


def cards_of(gpus: GpusSeen, isolation: Isolation, host: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that a run is given, as CUDA_VISIBLE_DEVICES names them; see `why_one_order`."""
    if isolation.in_container:
        return ()
    named = host.get(VISIBLE)
    if named is None:
        return tuple(map(str, range(len(gpus.gpus))))
    cards = tuple(card.strip() for card in named.split(SEPARATOR))
    return cards if all(map(CARD.fullmatch, cards)) else ()


def why_one_order(variation: Variation, cards: tuple[str, ...], gpus: GpusSeen) -> str:
    """Why GPUs cannot be named in another order, or the empty text."""
    if variation.name != GPU_INDEX:
        return ""
    if len(cards) < PAIR:
        return "the training is given one GPU, or its container chooses"
    if len(set(gpus.names)) > 1:
        return "the machine's GPUs are of different models"
    return ""
