"""Reports threads that the script starts, and the order in which pieces of work finish.

Two threads that draw from one generator take its numbers in an order that nothing fixes. So the
functions that draw are hooked, but only once the script has started a thread of its own. torch's
functions are left alone, since its compiler knows them by identity; the fingerprint of torch's
random state covers them.

Threads and processes finish as the machine lets them. `as_completed` and `imap_unordered` return
results in that order, so anything summed or stacked from them depends on it. `wait` may return
those that finish first. A digest of the order is reported for each line. If two runs differ in it,
the line is known.

Every Python process of a training imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from ..user_code import (
    called_in,
    caller_of,
    calling_frame,
    named_as,
    unseen_by_warnings,
    user_stack,
    users_frame,
)
from .recorded import COMPLETION, DRAW, SOURCES, THREAD, SourceRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType, ModuleType
    from typing import Any


# packages that start threads on behalf of the user
THREAD_MAKERS = frozenset(("threading", "concurrent", "multiprocessing", "asyncio"))
NO_DRAWS = frozenset(("seed", "getstate", "setstate", "get_state", "set_state"))
# a thread may draw millions of numbers, and looking at the stack costs time
MAX_LOOKS = 1_000

_hooked: set[str] = set()


def hook_threads(module: ModuleType) -> None:
    """Hook `Thread.start` to report each user's line that starts a thread."""
    kind: Any = module.Thread
    plain = kind.start

    def start(self: Any) -> Any:
        try:
            frame = calling_frame(1)
            user = users_frame(frame, THREAD_MAKERS)
            if user is not None and not _feeds_a_queue(frame):
                SOURCES.found_at(THREAD, _started_by(frame, user), user)
                hook_draws()
        except Exception:
            # an error of the harness must never reach the script
            pass
        return plain(self)

    named_as(start, plain)
    kind.start = unseen_by_warnings(start)


def _feeds_a_queue(frame: FrameType) -> bool:
    """Whether a multiprocessing queue starts its feeder thread, which only passes items on."""
    return frame.f_globals.get("__name__") == "multiprocessing.queues"


def _started_by(frame: FrameType, user: FrameType) -> str:
    call = "threading.Thread" if frame is user else called_in(frame, user)
    # asyncio starts its threads itself: report the asyncio function that the user called
    return (
        call.replace("asyncio.threads.", "asyncio.")
        if call.startswith("asyncio.")
        else "threading.Thread"
    )


def hook_draws() -> None:
    """Hook the functions that draw from Python's and NumPy's common generators, once a module."""
    for name in ("random", "numpy.random"):
        module = sys.modules.get(name)
        if module is None or name in _hooked:
            continue
        _hooked.add(name)
        common = module._inst if name == "random" else module.mtrand._rand  # noqa: SLF001 - no public name
        for function, plain in list(vars(module).items()):
            if getattr(plain, "__self__", None) is common and function not in NO_DRAWS:
                setattr(module, function, Draw(plain, f"{name}.{function}", name))


class Draw:
    """A function that draws from a common generator; reports the line if a thread calls it."""

    def __init__(self, plain: Any, call: str, module: str) -> None:
        self._plain = plain
        self._call = call
        self._looks = 0
        self._main = get_ident()
        # an instance replaces a bound method: give it what inspection and pickling look at
        for name in ("__name__", "__qualname__", "__doc__"):
            setattr(self, name, getattr(plain, name, None))
        self.__module__ = module
        self.__wrapped__ = plain

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the plain function; report the line unless the main thread calls."""
        if get_ident() != self._main and self._looks < MAX_LOOKS:
            self._looks += 1
            self._tell(calling_frame(1))
        return self._plain(*args, **named)

    def __reduce__(self) -> Any:
        """Pickle as the plain function does: as a method of the common generator."""
        return self._plain.__reduce__()

    def __repr__(self) -> str:
        """Show the plain function."""
        return repr(self._plain)

    def _tell(self, frame: Any) -> None:
        try:
            user = users_frame(frame, frozenset(("random", "numpy")))
            if user is not None:
                SOURCES.found_at(DRAW, self._call, user)
        except Exception:
            return


POOLS = frozenset(("concurrent", "multiprocessing"))
NOBODY: frozenset[str] = frozenset()
ALL = "ALL_COMPLETED"
# For each line. A loop may take results a thousand times; runs that differ do so early.
MAX_ORDERS = 8
QUEUES = {"queue": "queue.Queue.get", "multiprocessing.queues": "multiprocessing.Queue.get"}
MESSAGES = "torch.distributed.distributed_c10d"
RECEIVE = "torch.distributed.recv"
# For a line that takes pieces one by one: only the first are recorded, and reported at these
# counts.
MAX_ARRIVALS = 20
TOLD_AT = frozenset((2, 3, 4, 6, 8, 12, 16, 20))
MAX_LINES = 5
MAX_LABEL = 40
MAX_PARTS = 8
# reading a larger piece may take longer than the training takes to use it
MAX_PIECE_BYTES = 4 << 20
# messages in progress at a time; more are not reported
MAX_UNDER_WAY = 1_000
# functions of torch.distributed that do not wait if the script passes `async_op=True`
COLLECTIVES = (
    *("broadcast", "all_reduce", "all_reduce_coalesced", "reduce", "all_gather"),
    *("all_gather_single", "all_gather_into_tensor", "all_gather_coalesced", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "all_to_all_single"),
    *("all_to_all", "_all_gather_base", "_reduce_scatter_base", "batch_isend_irecv"),
)
# methods that wait for a message, or ask whether it has arrived
WAITS = ("wait", "is_completed", "synchronize", "get_future", "result", "block_current_stream")

_orders_of: dict[str, int] = {}
_arrivals: dict[tuple[str, str, int], Arrivals] = {}


class Order:
    """The order in which the pieces of one call finish, by their places in the call's argument."""

    __slots__ = ("_digest", "_source")

    def __init__(self, call: str, frame: FrameType) -> None:
        import hashlib

        place = caller_of(frame).place
        count = _orders_of[str(place)] = _orders_of.get(str(place), 0) + 1
        self._source = SourceRecord(
            COMPLETION, call, place, user_stack(frame), before=f"call {count}"
        )
        self._digest = hashlib.sha256()

    def done(self, place: int) -> None:
        """Note that the piece at this place has finished."""
        self._digest.update(b"%d," % place)

    def tell(self) -> None:
        """Report the order: all pieces have finished."""
        self._source.after = self._digest.hexdigest()[:32]
        try:
            SOURCES.report(self._source)
        except Exception:
            return


def _begun(call: str, frame: FrameType) -> Order | None:
    """Return a new order, or None if no user's line waits or the line was reported often enough."""
    try:
        user = users_frame(frame, POOLS)
        if user is None or SOURCES.full(COMPLETION):
            return None
        if _orders_of.get(str(caller_of(user).place), 0) >= MAX_ORDERS:
            return None
        return Order(call, user)
    except Exception:
        # an error of the harness must never reach the script
        return None


class Arrivals:
    """The pieces that one line takes one by one, in order of arrival; each as a short label."""

    __slots__ = ("_call", "_labels", "_place", "_stack")

    def __init__(self, call: str, user: FrameType) -> None:
        self._call = call
        self._place = caller_of(user).place
        self._stack = user_stack(user)
        self._labels: list[str] = []

    def came(self, label: str, *, last: bool = False) -> None:
        """Note a piece; report at a few counts, since usually nobody knows which piece is last."""
        import hashlib

        count = len(self._labels) + 1
        if count > MAX_ARRIVALS:
            return
        self._labels.append(hashlib.sha256(label.encode("utf-8", "replace")).hexdigest()[:8])
        if count in TOLD_AT or (last and count > 1):
            words = {"before": f"call {count}", "after": " ".join(self._labels)}
            SOURCES.report(SourceRecord(COMPLETION, self._call, self._place, self._stack, **words))


def _arrived(call: str, item: object, frame: FrameType, *, last: bool = False) -> None:
    """Note that a user's line has received a piece."""
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
        arrivals.came(label, last=last)
    except Exception:
        # an error of the harness must never reach the script
        return


def _all_arrived(call: str, outcome: Any, frame: FrameType) -> None:
    """Note the finished pieces that `wait` returned, in the order of the set that holds them."""
    try:
        done, pending = outcome
        left = len(done)
        for piece in done:
            left -= 1
            _arrived(call, _outcome(piece), frame, last=not (left or pending))
    except Exception:
        # as above
        return


def _outcome(piece: Any) -> object:
    """Return a piece's result if it has a label, else the piece's name, which tasks have."""
    failed = piece.cancelled() or getattr(piece, "_exception", None) is not None
    result = None if failed else piece.result()
    if _label(result) is None and hasattr(piece, "get_name"):
        return piece.get_name()
    return result


def _label(item: object) -> str | None:
    """Return a label from the plain values in a piece, or else from its tensors and arrays.

    None if it contains neither, since then nothing distinguishes it from other pieces.
    """
    if isinstance(item, bool | int | float | str | bytes):
        return repr(item)[:MAX_LABEL]
    if isinstance(item, dict):
        item = tuple(item.values())
    if isinstance(item, tuple | list):
        plain = (part for part in item[:MAX_PARTS] if isinstance(part, bool | int | float | str))
        words = " ".join(repr(part)[:MAX_LABEL] for part in plain)
        return words or " ".join(filter(None, map(_digest_of, item[:MAX_PARTS]))) or None
    return _digest_of(item) or None


def _digest_of(item: Any) -> str:
    """Return a digest of a small CPU tensor or NumPy array; empty for anything else."""
    import hashlib
    import sys

    kind = type(item)
    digest = hashlib.sha256()
    if (kind.__module__, kind.__name__) == ("numpy", "ndarray"):
        if item.nbytes > MAX_PIECE_BYTES or item.dtype.hasobject:
            return ""
        digest.update(f"{item.dtype} {item.shape}".encode() + item.tobytes())
        return digest.hexdigest()
    torch: Any = sys.modules.get("torch")
    if torch is None or kind is not torch.Tensor or item.device.type != "cpu":
        return ""
    from ..plain_tensors import byte_size, use_bytes

    if byte_size(item) > MAX_PIECE_BYTES:
        return ""
    digest.update(f"{item.dtype} {tuple(item.shape)}".encode())
    with torch.no_grad():
        use_bytes(item.detach(), digest.update)
    return digest.hexdigest()


def _hook_queues(module: Any, call: str) -> None:
    kind = module.Queue
    plain = kind.get

    def get(self: Any, *args: Any, **named: Any) -> Any:
        item = plain(self, *args, **named)
        _arrived(call, item, calling_frame(1))
        return item

    named_as(get, plain)
    kind.get = get


def _hook_receives(module: Any) -> None:
    plain = module.recv

    def recv(tensor: Any, src: int | None = None, *args: Any, **named: Any) -> Any:
        sender = plain(tensor, src, *args, **named)
        # only a receive from any rank depends on arrival; one from a given rank has a fixed order
        if src is None and named.get("group_src") is None:
            _arrived(RECEIVE, sender, calling_frame(1))
        return sender

    named_as(recv, plain)
    module.recv = recv
    for name in ("isend", "irecv", *COLLECTIVES):
        # which of these exist depends on torch's version
        if hasattr(module, name):
            setattr(module, name, _begins_a_message(getattr(module, name), name))
    for name in WAITS:
        if hasattr(module.Work, name):
            setattr(module.Work, name, _waits(getattr(module.Work, name), name))


class Message:
    """A message or collective that a user's line has begun and not waited for yet.

    `work` is torch's handle.
    """

    __slots__ = ("any_source", "call", "place", "stack", "work")

    def __init__(self, work: Any, call: str, frame: FrameType, *, any_source: bool) -> None:
        import weakref

        # a weak reference: when the script drops the handle, nobody can wait for the message any
        # more
        self.work = weakref.ref(work)
        self.call = call
        self.place = caller_of(frame).place
        self.stack = user_stack(frame)
        self.any_source = any_source


_under_way: list[Message] = []


def _begins_a_message(plain: Any, name: str) -> Any:
    import inspect

    call = f"torch.distributed.{name}"

    def begin(*args: Any, **named: Any) -> Any:
        begun = plain(*args, **named)
        try:
            # a collective that waited inside the call returns None
            works = begun if isinstance(begun, list | tuple) else (begun,)
            user = users_frame(calling_frame(1), NOBODY) if works and works[0] else None
            if user is not None:
                sender = args[1:2] or (named.get("src"),)
                anyone = sender == (None,) and named.get("group_src") is None
                anyone = anyone and name == "irecv"
                _under_way.extend(
                    Message(work, call, user, any_source=anyone)
                    for work in works[: MAX_UNDER_WAY - len(_under_way)]
                )
        except Exception:
            # an error of the harness must never reach the script
            pass
        return begun

    # torch's compiler sorts arguments by the signature
    begin.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined] # as inspect asks
    return named_as(begin, plain)


def _waits(plain: Any, name: str) -> Any:
    def wait(self: Any, *args: Any, **named: Any) -> Any:
        answer = plain(self, *args, **named)
        # `is_completed` that answers False has not waited: the script asks again
        if _under_way and not (name == "is_completed" and not answer):
            _came(self, calling_frame(1))
        return answer

    for word in ("__name__", "__qualname__", "__doc__"):
        setattr(wait, word, getattr(plain, word, None))
    return wait


def _came(work: Any, frame: FrameType) -> None:
    try:
        message = next((task for task in _under_way if task.work() is work), None)
        if message is None:
            return
        _under_way.remove(message)
        if message.any_source:
            # the sender of a receive from any rank is known only after waiting
            _arrived(message.call, work._source_rank(), frame)  # noqa: SLF001 - as recv asks
    except Exception:
        # an error of the harness must never reach the script
        return


def tell_unwaited() -> None:
    """Report messages that the script has not waited for when a step's update begins."""
    messages = list(_under_way)
    _under_way.clear()
    for message in messages:
        SOURCES.report(SourceRecord(THREAD, message.call, message.place, message.stack))


def hook_completions(module: ModuleType) -> None:
    """Hook a module that returns pieces of work or messages in the order of arrival."""
    if module.__name__ == "multiprocessing.pool":
        _hook_pools(module)
    elif module.__name__ in QUEUES:
        _hook_queues(module, QUEUES[module.__name__])
    elif module.__name__ == MESSAGES:
        _hook_receives(module)
    elif module.__name__ == "asyncio.tasks":
        _hook_tasks(module)
    else:
        _hook_futures(module)


def _hook_futures(module: Any) -> None:
    plain = module._base.as_completed  # noqa: SLF001 - where it is defined

    def as_completed(fs: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        # begin now and not at the first result, which a progress bar may ask for
        order = _begun("concurrent.futures.as_completed", calling_frame(1))
        return plain(fs, timeout) if order is None else _watched(order, plain, fs, timeout)

    named_as(as_completed, plain)
    module._base.as_completed = module.as_completed = as_completed  # noqa: SLF001 - as above
    plain_wait = module._base.wait  # noqa: SLF001 - as above

    def wait(fs: Any, timeout: float | None = None, return_when: str = ALL) -> Any:
        outcome = plain_wait(fs, timeout, return_when)
        # a caller that waits for all pieces takes results in the order in which it submitted them
        if return_when != ALL:
            _all_arrived("concurrent.futures.wait", outcome, calling_frame(1))
        return outcome

    named_as(wait, plain_wait)
    module._base.wait = module.wait = wait  # noqa: SLF001 - as above


def _watched(order: Order, plain: Any, fs: Any, timeout: float | None) -> Iterator[Any]:
    futures = list(fs)
    places = {id(future): place for place, future in enumerate(futures)}
    done = plain(futures, timeout)
    # as in the plain function, keep no reference to a result once it is returned
    del futures, fs
    for future in done:
        order.done(places[id(future)])
        held = [future]
        del future
        yield held.pop()
    order.tell()


def _hook_tasks(module: Any) -> None:
    plain = module.as_completed

    def as_completed(fs: Any, *, timeout: float | None = None) -> Any:
        order = _begun("asyncio.as_completed", calling_frame(1))
        if order is None or not isinstance(fs, list | tuple):
            # reading a generator ahead would start its work earlier than without the harness
            return plain(fs, timeout=timeout)
        left = len(fs)

        def done(place: int) -> None:
            nonlocal left
            order.done(place)
            left -= 1
            if not left:
                order.tell()

        return plain(
            [_noted(piece, place, done) for place, piece in enumerate(fs)], timeout=timeout
        )

    named_as(as_completed, plain)
    module.as_completed = as_completed
    plain_wait = module.wait

    async def wait(fs: Any, *, timeout: float | None = None, return_when: str = ALL) -> Any:  # noqa: ASYNC109 - as the plain one has it
        outcome = await plain_wait(fs, timeout=timeout, return_when=return_when)
        # as in `concurrent.futures`
        if return_when != ALL:
            _all_arrived("asyncio.wait", outcome, calling_frame(1))
        return outcome

    named_as(wait, plain_wait)
    module.wait = wait


def _noted(piece: Any, place: int, done: Callable[[int], None]) -> Any:
    """Return an equal piece of work that calls `done` with its place when it finishes."""
    import inspect

    if inspect.iscoroutine(piece):
        return _awaited(piece, place, done)
    # a future is returned as it is, so that the script still recognises it
    tell = getattr(piece, "add_done_callback", None)
    if tell is not None:
        tell(lambda _: done(place))
    return piece


async def _awaited(piece: Any, place: int, done: Callable[[int], None]) -> Any:
    try:
        return await piece
    finally:
        done(place)


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
        _tell_of(self)

    def _set_length(self: Any, length: int) -> None:
        put_length(self, length)
        _tell_of(self)

    kind.__init__ = __init__
    kind._set = _set  # noqa: SLF001 - no public name
    kind._set_length = _set_length  # noqa: SLF001 - as above


def _tell_of(iterator: Any) -> None:
    order = iterator._gate_order  # noqa: SLF001 - this module's own
    if order is not None and iterator._index == iterator._length:  # noqa: SLF001 - no public name
        iterator._gate_order = None  # noqa: SLF001 - as above
        order.tell()
