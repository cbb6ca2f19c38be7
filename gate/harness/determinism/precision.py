"""Reports switches of precision that are no knobs of the gate and change during a training.

A value that a script sets once and keeps is its own choice and equal in every run, so only changes
are reported. Setters are hooked where possible, which gives the line. All switches are read again
at the end of each step.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import torch

from ..sources.recorded import PRECISION, SOURCES, SourceRecord
from ..user_code import CodeLine, calling_frame, named_as, unseen_by_warnings

_C: Final[Any] = torch._C  # noqa: SLF001 - the public setters end there


def _on_off(read: Callable[[], object]) -> Callable[[], str]:
    return lambda: "on" if read() else "off"


def _autocast(device: str) -> Callable[[], str]:
    def read() -> str:
        if not torch.is_autocast_enabled(device):
            return "off"
        return str(torch.get_autocast_dtype(device)).removeprefix("torch.")

    return read


READERS: Final[dict[str, Callable[[], str]]] = {
    "torch.backends.mkldnn.enabled": _on_off(_C._get_mkldnn_enabled),  # noqa: SLF001 - see above
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
}
# read where the model is called: an autocast context is over at the end of a step
IN_FORWARD: Final[dict[str, Callable[[], str]]] = {
    f"autocast on {device}": _autocast(device) for device in ("cpu", "cuda")
}
SETTERS: Final = {
    "torch.backends.mkldnn.enabled": "_set_mkldnn_enabled",
    "float32_matmul_precision": "_set_float32_matmul_precision",
    "default_dtype": "_set_default_dtype",
}
FLUSH_DENORMAL: Final = "torch.set_flush_denormal"


class Precision:
    """Remembers the value that each switch had when it was last read."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._flush = "off"

    def poll(self, readers: dict[str, Callable[[], str]], frame: FrameType | None = None) -> None:
        """Report each switch that changed since the last call; the first call only remembers."""
        for name, read in readers.items():
            now = read()
            if self._last.get(name) != now:
                self.note(name, now, frame)

    def note(self, name: str, now: str, frame: FrameType | None) -> None:
        """Remember the present value of a switch, and report it if it changed."""
        before = self._last.get(name, now)
        self._last[name] = now
        if now != before:
            _tell(name, before, now, frame)

    def flush_denormal(self, on: object, frame: FrameType) -> None:
        """Note a call of `torch.set_flush_denormal`, since torch cannot read this switch."""
        now = "on" if on else "off"
        if now != self._flush:
            _tell(FLUSH_DENORMAL, self._flush, now, frame)
        self._flush = now


def _tell(name: str, before: str, now: str, frame: FrameType | None) -> None:
    if frame is None:
        SOURCES.report(SourceRecord(PRECISION, name, CodeLine(), [], before=before, after=now))
    else:
        SOURCES.found_at(PRECISION, name, frame, before=before, after=now)


PRECISION_SWITCHES: Final = Precision()


def install() -> None:
    """Hook the setters and remember the present values."""
    PRECISION_SWITCHES.poll(READERS)
    for name, attribute in SETTERS.items():
        plain = getattr(_C, attribute, None)
        if plain is not None:
            setattr(_C, attribute, _hooked(plain, name))
    mkldnn: Any = vars(type(torch.backends.mkldnn)).get("enabled")
    # the property keeps its own reference to the setter, so replacing the name is not enough
    if hasattr(mkldnn, "setter"):
        mkldnn.setter = _C._set_mkldnn_enabled  # noqa: SLF001 - the property holds on to it
    plain_flush = torch.set_flush_denormal

    def set_flush_denormal(mode: bool) -> bool:  # noqa: FBT001 - torch's signature
        taken = plain_flush(mode)
        # `taken` is False on a CPU without support, where nothing changes
        PRECISION_SWITCHES.flush_denormal(taken and mode, calling_frame(1))
        return taken

    named_as(set_flush_denormal, plain_flush)
    torch.set_flush_denormal = unseen_by_warnings(set_flush_denormal)


def _hooked(plain: Callable[..., Any], name: str) -> Any:
    def setter(*args: Any, **named: Any) -> Any:
        result = plain(*args, **named)
        PRECISION_SWITCHES.note(name, READERS[name](), calling_frame(1))
        return result

    setter.__name__ = plain.__name__
    setter.__doc__ = plain.__doc__
    return unseen_by_warnings(setter)
