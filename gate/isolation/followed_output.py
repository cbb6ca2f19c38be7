"""A training's output as it comes, until the training has ended or its time is over."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable
from typing import Final

CHUNK_BYTES: Final = 256 * 1024
POLL_SECONDS: Final = 0.05
DRAIN_SECONDS: Final = 0.5
Take = Callable[[bytes], None]


class FollowedOutput:
    """What a process or a container writes; neither its end nor its silence is waited for."""

    def __init__(
        self,
        descriptor: int,
        *,
        ended: Callable[[], bool],
        wait: Callable[[float], object],
        pieces: Callable[[bytes], Iterable[bytes]] = lambda data: (data,),
    ) -> None:
        """`ended` asks whether the training is over; `pieces` finds the output in what is read.

        `wait` passes some seconds where the output was closed and the training goes on.
        """
        self.descriptor = descriptor
        self._ended = ended
        self._wait = wait
        self._pieces = pieces
        self._poller = select.poll()
        self._poller.register(descriptor, select.POLLIN)
        self.open = True

    def follow(self, take: Take, seconds: float) -> bool:
        """Hand on output until the training ends; False when that takes more than `seconds`."""
        deadline = time.monotonic() + seconds
        while not self._ended():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self._wait_for(take, min(remaining, POLL_SECONDS))
        self.drain(take)
        return True

    def drain(self, take: Take) -> None:
        """What is still on its way; never wait for an end, which a stranger might put off."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while self.open and self._poller.poll(0) and time.monotonic() < deadline:
            self.pump(take)

    def _wait_for(self, take: Take, seconds: float) -> None:
        if not self.open:
            self._wait(seconds)
        elif self._poller.poll(seconds * 1000):
            self.pump(take)

    def pump(self, take: Take) -> None:
        """Hand on what has come; waits where nothing has."""
        data = os.read(self.descriptor, CHUNK_BYTES)
        self.open = bool(data)
        for piece in self._pieces(data):
            take(piece)
