"""A held lock: until when its client may count on it, and how its loss is told."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from . import _tracing
from ._clock import now, of
from .errors import LeaseLost, lost
from .v1 import lock_pb2 as pb

if TYPE_CHECKING:
    from ._core import Core


def _margin(ttl: float) -> float:
    # Two clocks may differ by a thousandth.
    return max(ttl / 1000, 0.005)


class HeldLock:
    """A lock that is held, and whose lease is renewed until it is released.

    Its time counts from before the request was sent, so that the loss is known here before another client can hold the
    lock. Each question reads the clock, so that the answer is right also after this process was stopped or its event
    loop was blocked. A process can still be paused between a check and a write: the resource must compare the tokens.
    """

    def __init__(self, core: Core, lease: pb.Lease, sent: float) -> None:
        self._core, self._lease = core, lease
        # Until when it is held, and when the last confirmation of that came.
        self._granted, self._ttl = sent + of(lease.waited), of(lease.ttl)
        self._until, self._confirmed = self._granted + self._ttl - _margin(self._ttl), now()
        # The command of the stream that has attached it.
        self._attached_by = math.inf
        # How many blocks of one thread or task hold it by re-entry, and the key of these.
        self._holds = 1
        self._reentry: Any = None
        self._loss: LeaseLost | None = None
        self._is_released = False
        self._ended = asyncio.Event()
        self._callbacks: deque[Callable[[LeaseLost], Any]] = deque()
        self._span: Any = None

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._lease.name

    @property
    def token(self) -> int:
        """The fencing token. It rises with every grant of the lock: the protected resource refuses smaller ones."""
        return self._lease.fencing_token

    @property
    def lease_id(self) -> str:
        """The id of the lease. Whoever knows it can renew and release the lease: keep it secret."""
        return self._lease.lease_id

    @property
    def loss(self) -> LeaseLost | None:
        """Why the lease is or may be lost, or that it was released; None while it is held."""
        return self._loss or (lost("unrenewed") if self._until <= now() else None)

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock for certain."""
        return not self.loss and not self._core.session.is_forked

    @property
    def remaining(self) -> timedelta:
        """For how long the lease is held if no further renewal is confirmed; zero if it is or may be lost."""
        return timedelta(seconds=max(self._until - now(), 0) if self.is_held else 0)

    def check(self) -> int:
        """The fencing token, for the next write. Asks no server.

        Raises LeaseLost if the lease is or may be lost or was released, and ForkedProcess in a child process of the one
        that holds it.
        """
        self._core.session.check()
        if loss := self.loss:
            raise loss
        return self.token

    def on_lost(self, callback: Callable[[LeaseLost], Any]) -> None:
        """Calls `callback` with the LeaseLost when the lease is or may be lost, at once if it is; not after a release.

        It runs beside the renewals, which it cannot delay: in a thread of its own, and for an `AsyncClient` in a task,
        where it may be a coroutine function and must not block the event loop.
        """
        self._callbacks.append(callback)
        if self._loss:
            self._tell()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} token={self.token} {self.loss or 'held'}>"

    @property
    def _tell_at(self) -> float:
        """When its loss is told, a little early so that its holder can stop in time."""
        return self._until - min(self._ttl / 20, 0.25)

    def _renewed(self, sent: float, ttl: float) -> None:
        """Counts a confirmed renewal. A lease whose time has passed may have been reported as lost, and stays so."""
        if ttl > 0 and not self.loss:
            self._confirmed, self._ttl = now(), ttl
            self._until = max(self._until, sent + ttl - _margin(ttl))

    def _end(self, loss: LeaseLost, is_released: bool = False) -> None:
        """Ends it, once, and tells its loss."""
        if self._loss:
            return
        self._is_released, self._loss = is_released, loss
        self._ended.set()
        if not is_released:
            _tracing.log("lost %s/%s, token %d: %s", self._lease.namespace, self.name, self.token, loss, is_warning=True)
            _tracing.lost(self._span, loss.cause)
        self._tell()

    def _tell(self) -> None:
        """Calls each callback once, though two threads may do it."""
        with suppress(IndexError):
            while True:
                callback = self._callbacks.popleft()
                if not self._is_released:
                    self._core.notify(callback, self._loss)
