"""What the gate asks of the guest: the variables of docs/guest-protocol.md, read once.

Imported by every Python process of a training, so nothing is imported here.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "REPRO_GATE_"
STRICT = "strict"
ON = "on"


class GuestSettings:
    """The variables, parsed.

    `strict` names the column of the table of knobs that counts where `knobs`, knob to word, is
    silent. `tamper` is `observe`, `restore` or `fail`.
    """

    __slots__ = ("knobs", "max_steps", "out", "seed", "strict", "tamper", "threads")

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Raise `ValueError` with the variable's name when one is missing or malformed."""
        self.out = _text(environ, "OUT")
        self.strict = _text(environ, "MODE") == STRICT
        self.seed = _whole_number(environ, "SEED")
        self.max_steps = _whole_number(environ, "MAX_STEPS")
        self.threads = _whole_number(environ, "THREADS")
        self.knobs = _pairs(environ.get(PREFIX + "KNOBS", ""))
        self.tamper = environ.get(PREFIX + "TAMPER", "observe")

    def seeds(self, knob: str) -> bool:
        """Whether the stream of this knob is to be seeded here."""
        return self.knobs.get(knob, ON) == ON


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


def _pairs(text: str) -> dict[str, str]:
    """`name=value;name=value`, the values without either sign."""
    found = {}
    for pair in filter(None, text.split(";")):
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise ValueError(f"{PREFIX}KNOBS: {pair!r} is not name=value")
        found[name] = value
    return found
