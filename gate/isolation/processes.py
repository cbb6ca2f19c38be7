"""Processes that live at the same time, followed by one thread; the port `Processes` by it."""

from __future__ import annotations

import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from gate.isolation.followed_output import POLL_SECONDS, FollowedOutput, Take
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.isolation.process_table import adopt_orphans, closed_memory
from gate.isolation.stop_signals import StopSignals
from gate.isolation.training_output import RunOutput


class Running(Protocol):
    """A process or container between its start and its end; `end` is owed whatever happens."""

    @property
    def output(self) -> FollowedOutput:
        """What it prints."""
        ...

    @property
    def exit_code(self) -> int:
        """Negative for a signal; only after the end."""
        ...

    @property
    def wall_seconds(self) -> float:
        """From the moment when it was let go to its end."""
        ...

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel is known to have ended a process of it for lack of memory."""
        ...

    def let_go(self) -> None:
        """Its time counts from now on."""
        ...

    def ended(self) -> bool:
        """Whether it is over; what it started may live on."""
        ...

    def end(self, take: Take) -> None:
        """End what still lives of it, and give back what it held."""
        ...

    def kill(self) -> None:
        """End all of it at once: quick, and without an error."""
        ...


class Started:
    """One of a group, as the port `StartedProcess`."""

    def __init__(
        self, running: Running, request: ProcessRequest, on_line: Callable[[bytes], None]
    ) -> None:
        """It has just been started, and nothing of its output was read."""
        self.running = running
        self.output = RunOutput(request.output_limit_bytes, on_line)
        self.result: ProcessResult | None = None
        self.deadline: float | None = None
        self.timeout_seconds = request.timeout_seconds
        self.stopped = False

    def let_go(self) -> None:
        """Its time counts from now on, and its output is handed on."""
        self.running.let_go()
        self.deadline = time.monotonic() + self.timeout_seconds

    def stop(self) -> None:
        """To be ended at the next look."""
        self.stopped = True


class ProcessGroup:
    """`begin` starts a process or a container; `interrupts` must be the installed ones, if any."""

    def __init__(self, begin: Callable[[ProcessRequest], Running], interrupts: StopSignals) -> None:
        """Nothing is started yet."""
        self._begin = begin
        self._interrupts = interrupts
        self._living: list[Started] = []

    def start(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> Started:
        """Start one; it is told apart from the others from its first moment on."""
        # a signal between the start and the next line would leave a process that nobody ends
        with self._interrupts.deferred():
            started = Started(self._begin(request), request, on_line)
            self._living.append(started)
        return started

    def follow(self, seconds: float) -> None:
        """Hand on output until one of those that were let go ends, at most for so long."""
        until = time.monotonic() + seconds
        while not self._end_those_that_are_over():
            left = until - time.monotonic()
            watched = [one for one in self._living if one.deadline is not None]
            if left <= 0 or not watched:
                return
            self._pump(watched, min(left, POLL_SECONDS))

    def _end_those_that_are_over(self) -> bool:
        over = [one for one in self._living if one.stopped or _is_over(one)]
        for one in over:
            self._end(one)
        return bool(over)

    def _pump(self, watched: list[Started], seconds: float) -> None:
        """Wait for output of any, and hand on what has come."""
        poller = select.poll()
        outputs = {one.running.output.descriptor: one for one in watched if one.running.output.open}
        for descriptor in outputs:
            poller.register(descriptor, select.POLLIN)
        if not outputs:
            time.sleep(min(seconds, POLL_SECONDS))
            return
        for descriptor, _ in poller.poll(seconds * 1000):
            one = outputs[descriptor]
            one.running.output.pump(one.output.take)

    def _end(self, one: Started) -> None:
        in_time = one.running.ended()
        if in_time and not one.stopped:
            one.running.output.drain(one.output.take)
        with self._interrupts.deferred():
            try:
                one.running.end(one.output.keep)
            finally:
                # only now: a second signal kills those that are still here
                self._living.remove(one)
        one.result = one.output.result(
            one.running, in_time=in_time, out_of_memory=one.running.out_of_memory
        )

    def kill(self) -> None:
        """End all of them at once: quick, and without an error."""
        for one in self._living:
            one.running.kill()

    def end(self) -> None:
        """End all that lives, the newest first; the first fault is raised when all are through."""
        faults: list[Exception] = []
        while self._living:
            one = self._living[-1]
            try:
                one.running.end(one.output.keep)
            except Exception as fault:  # noqa: BLE001 - the others have to be ended all the same
                faults.append(fault)
            self._living.remove(one)
        if faults:
            raise faults[0]


def _is_over(one: Started) -> bool:
    if one.deadline is None:
        return False
    return one.running.ended() or time.monotonic() >= one.deadline


class GroupedProcesses(ABC):
    """The port `Processes` for whoever can start one."""

    def __init__(self, interrupts: StopSignals | None = None) -> None:
        """`interrupts` must be the installed ones, if any are."""
        self._interrupts = interrupts or StopSignals()

    @abstractmethod
    def begin(self, request: ProcessRequest) -> Running:
        """Start one; raises `RunError` when it cannot be started."""

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        """Run to the end, to its time limit, or to an exception, then leave no process behind.

        `on_line` gets lines to show (see `LineFeed`: a flood is thinned out); what is to be relied
        on stands in the result. Raises `RunError` when the process could not be started, or when
        something that it started could not be ended.
        """
        with self.together() as group:
            started = group.start(request, on_line)
            started.let_go()
            while started.result is None:
                group.follow(request.timeout_seconds)
            return started.result

    @contextmanager
    def together(self) -> Iterator[ProcessGroup]:
        """Processes that live at the same time; none of them is left when the body ends."""
        # before the start: a daemon whose parent ends goes to the nearest such ancestor, not to
        # init
        adopt_orphans()
        group = ProcessGroup(self.begin, self._interrupts)
        with (
            self._interrupts.deferred(),
            closed_memory(),
            self._interrupts.last_resort(group.kill),
        ):
            try:
                with self._interrupts.allowed():
                    yield group
            finally:
                group.end()
