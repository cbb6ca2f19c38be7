"""What the gate asks of the guest: the variables of docs/guest-protocol.md, read once.

Imported by every Python process of a training, so nothing is imported here.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "REPRO_GATE_"
STRICT = "strict"
FILL = "fill_uninitialized_memory"


class GuestSettings:
    """The variables, parsed.

    `knobs` names the switches that are on, None for all of them; only strict mode has any. Seeds
    and threads are set either way. `noise` asks for the gradients of the first step.
    """

    __slots__ = ("_fill", "knobs", "max_steps", "noise", "out", "seed", "strict", "threads")

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Raise `ValueError` with the variable's name when one is missing or malformed."""
        self.out = _text(environ, "OUT")
        self.strict = _text(environ, "MODE") == STRICT
        self.seed = _whole_number(environ, "SEED")
        self.max_steps = _whole_number(environ, "MAX_STEPS")
        self.threads = _whole_number(environ, "THREADS")
        self.noise = environ.get(f"{PREFIX}NOISE", "") == "1"
        self._fill = _text(environ, "FILL") == "1"
        names = environ.get(f"{PREFIX}KNOBS")
        self.knobs = None if names is None else frozenset(filter(None, names.split(",")))

    def has(self, knob: str) -> bool:
        """Whether a switch is to be on."""
        if self.knobs is None:
            return self.strict and (knob != FILL or self._fill)
        return self.strict and knob in self.knobs


def _text(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(PREFIX + name, "")
    if not value:
        raise ValueError(f"{PREFIX}{name} is not set")
    return value


def _whole_number(environ: Mapping[str, str], name: str) -> int:
    text = _text(environ, name)
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{PREFIX}{name} is {text!r}, not a whole number")
    return int(text)
