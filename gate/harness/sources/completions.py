"""The order in which pieces of work are done, where the script takes them in that order.

Threads and processes finish as the machine lets them. `as_completed` and `imap_unordered` hand the
results on in that order, so whatever is summed or stacked from them has it too. A digest of the
order is told for each line; where two runs differ in it, that line is known.

Imported by every Python process of a training, so nothing heavy is imported here.
"""

from __future__ import annotations

from ..user_code import caller_of, calling_frame, user_stack, users_frame
from .found import COMPLETION, SOURCES, Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType, ModuleType
    from typing import Any

POOLS = frozenset(("concurrent", "multiprocessing"))
# of a line: a loop takes results a thousand times, and what differs does so early
MAX_ORDERS = 8
QUEUES = {"queue": "queue.Queue.get", "multiprocessing.queues": "multiprocessing.Queue.get"}
MESSAGES = "torch.distributed.distributed_c10d"
RECEIVE = "torch.distributed.recv"
# of what comes to a line one by one: the first pieces, told at these counts
MAX_ARRIVALS = 20
TOLD_AT = frozenset((2, 3, 4, 6, 8, 12, 16, 20))
MAX_LINES = 5
MAX_LABEL = 40
MAX_PARTS = 8

_orders_of: dict[str, int] = {}
_arrivals: dict[tuple[str, str, int], Arrivals] = {}


class Order:
    """The pieces that one call of a line's waits for, by their places in what it was given."""

    __slots__ = ("_digest", "_source")

    def __init__(self, call: str, frame: FrameType) -> None:
        import hashlib

        place = caller_of(frame).place
        count = _orders_of[str(place)] = _orders_of.get(str(place), 0) + 1
        self._source = Source(COMPLETION, call, place, user_stack(frame), before=f"call {count}")
        self._digest = hashlib.sha256()

    def done(self, place: int) -> None:
        """The piece at this place is done."""
        self._digest.update(b"%d," % place)

    def tell(self) -> None:
        """No piece is left."""
        self._source.after = self._digest.hexdigest()[:32]
        try:
            SOURCES.report(self._source)
        except Exception:
            return


def _begun(call: str, frame: FrameType) -> Order | None:
    """None where nobody of the user's waits, or that line was told often enough."""
    try:
        user = users_frame(frame, POOLS)
        if user is None or SOURCES.full(COMPLETION):
            return None
        if _orders_of.get(str(caller_of(user).place), 0) >= MAX_ORDERS:
            return None
        return Order(call, user)
    except Exception:
        # what the harness cannot find out must not be the script's worry
        return None


class Arrivals:
    """What one line takes, piece by piece, from whoever comes first; each by a short label."""

    __slots__ = ("_call", "_labels", "_place", "_stack")

    def __init__(self, call: str, user: FrameType) -> None:
        self._call = call
        self._place = caller_of(user).place
        self._stack = user_stack(user)
        self._labels: list[str] = []

    def came(self, label: str) -> None:
        """One more; told at a few counts, since nobody knows which is the last."""
        import hashlib

        count = len(self._labels) + 1
        if count > MAX_ARRIVALS:
            return
        self._labels.append(hashlib.sha256(label.encode("utf-8", "replace")).hexdigest()[:8])
        if count in TOLD_AT:
            words = {"before": f"call {count}", "after": " ".join(self._labels)}
            SOURCES.report(Source(COMPLETION, self._call, self._place, self._stack, **words))


def _arrived(call: str, item: object, frame: FrameType) -> None:
    """A piece has come to a line of the user's."""
    try:
        user = users_frame(frame, POOLS)
        label = None if user is None else _label(item)
        if user is None or label is None:
            return
        key = (call, user.f_code.co_filename, user.f_lineno)
        arrivals = _arrivals.get(key)
        if arrivals is None:
            if len(_arrivals) >= MAX_LINES:
                return
            arrivals = _arrivals[key] = Arrivals(call, user)
        arrivals.came(label)
    except Exception:
        # what the harness cannot find out must not be the script's worry
        return


def _label(item: object) -> str | None:
    """The plain values of a piece, which tell it from others; None where it has none."""
    if isinstance(item, bool | int | float | str | bytes):
        return repr(item)[:MAX_LABEL]
    if isinstance(item, dict):
        item = tuple(item.values())
    if isinstance(item, tuple | list):
        plain = (one for one in item[:MAX_PARTS] if isinstance(one, bool | int | float | str))
        return " ".join(repr(one)[:MAX_LABEL] for one in plain) or None
    return None


def _hook_queues(module: Any, call: str) -> None:
    kind = module.Queue
    plain = kind.get

    def get(self: Any, *args: Any, **named: Any) -> Any:
        item = plain(self, *args, **named)
        _arrived(call, item, calling_frame(1))
        return item

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(get, name, getattr(plain, name))
    kind.get = get


def _hook_receives(module: Any) -> None:
    plain = module.recv

    def recv(tensor: Any, src: int | None = None, *args: Any, **named: Any) -> Any:
        sender = plain(tensor, src, *args, **named)
        if src is None and named.get("group_src") is None:
            _arrived(RECEIVE, sender, calling_frame(1))
        return sender

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(recv, name, getattr(plain, name))
    module.recv = recv


def hook_completions(module: ModuleType) -> None:
    """A module has been imported that hands on pieces of work, or messages, as they come."""
    if module.__name__ == "multiprocessing.pool":
        _hook_pools(module)
    elif module.__name__ in QUEUES:
        _hook_queues(module, QUEUES[module.__name__])
    elif module.__name__ == MESSAGES:
        _hook_receives(module)
    else:
        _hook_futures(module)


def _hook_futures(module: Any) -> None:
    plain = module._base.as_completed  # noqa: SLF001 - where it is defined

    def as_completed(fs: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        # now, and not at the first result: a progress bar may ask for that
        order = _begun("concurrent.futures.as_completed", calling_frame(1))
        return plain(fs, timeout) if order is None else _watched(order, plain, fs, timeout)

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(as_completed, name, getattr(plain, name))
    module._base.as_completed = module.as_completed = as_completed  # noqa: SLF001 - as above


def _watched(order: Order, plain: Any, fs: Any, timeout: float | None) -> Iterator[Any]:
    futures = list(fs)
    places = {id(future): place for place, future in enumerate(futures)}
    done = plain(futures, timeout)
    # as the plain one does: a result that was handed on is kept by nobody here
    del futures, fs
    for future in done:
        order.done(places[id(future)])
        held = [future]
        del future
        yield held.pop()
    order.tell()


def _hook_pools(module: Any) -> None:
    kind = module.IMapUnorderedIterator
    begin, put, put_length = kind.__init__, kind._set, kind._set_length  # noqa: SLF001 - no public name

    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807 - it replaces one
        self._gate_order = _begun("multiprocessing.Pool.imap_unordered", calling_frame(1))
        begin(self, *args, **named)

    def _set(self: Any, i: int, obj: Any) -> None:
        if self._gate_order is not None:
            self._gate_order.done(i)
        put(self, i, obj)
        _told(self)

    def _set_length(self: Any, length: int) -> None:
        put_length(self, length)
        _told(self)

    kind.__init__ = __init__
    kind._set = _set  # noqa: SLF001 - no public name
    kind._set_length = _set_length  # noqa: SLF001 - as above


def _told(iterator: Any) -> None:
    order = iterator._gate_order  # noqa: SLF001 - this module's own
    if order is not None and iterator._index == iterator._length:  # noqa: SLF001 - no public name
        iterator._gate_order = None  # noqa: SLF001 - as above
        order.tell()
