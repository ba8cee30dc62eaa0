"""Locks for threads: a request for a lock, and the lock while it is held."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar, overload

from ._clock import Time, seconds
from ._held import HeldLock
from ._requests import Request
from ._threads import run

Held = TypeVar("Held")


class Lock(HeldLock):
    """A held lock. Several threads may use it."""

    def release(self) -> None:
        """Gives the lock back, within 5 s. A second release does nothing.

        Raises LeaseLost if the lease had ended before, so that another client may have held the lock, and NotReleased
        if no server has confirmed the release: the lock then stays held for at most the TTL.
        """
        run(self._core, self._core.release, self, cancels=False)

    def extend(self, ttl: Time) -> None:
        """Renews the lease at once for `ttl` (seconds or a timedelta), which later renewals are for too.

        It never ends sooner than before. Raises LeaseLost, InvalidRequest for a TTL outside the bounds, Unavailable.
        """
        run(self._core, self._core.extend, self, ttl)

    def update_metadata(self, metadata: Mapping[str, str]) -> None:
        """Replaces what operators see: at most 16 entries and 4096 bytes.

        Raises LeaseLost, InvalidRequest, Unavailable.
        """
        run(self._core, self._core.update_metadata, self, metadata)

    def wait_lost(self, timeout: Time) -> bool:
        """Waits until the lease is lost or released, at most `timeout` (seconds or a timedelta). Returns whether it is."""
        run(self._core, self._wait_lost, seconds(timeout, "timeout"))
        return self.loss is not None

    async def _wait_lost(self, timeout: float) -> None:
        # Not `wait_for`, which in Python 3.11 overlooks a cancellation that comes with the end.
        waiting = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait([waiting], timeout=timeout)
        finally:
            waiting.cancel()


class LockRequest(Request, Generic[Held]):
    """A request for a lock. A `with` block takes it, and gives it back however the block ends.

    It can be used again, and by several threads at once; each use takes the lock anew. An interrupt of a thread that
    waits, such as Ctrl-C, takes its claim out of the queue.

    The end of a block raises LeaseLost if the lease was lost meanwhile, and NotReleased if no server has confirmed the
    release. An error of the block itself comes first.
    """

    @overload
    def acquire(self) -> Held: ...

    @overload
    def acquire(self, blocking: Literal[False]) -> Held | None: ...

    def acquire(self, blocking: bool = True) -> Held | None:
        """Takes the lock, to be released by hand: by `release` of what is returned, or of this request. It is renewed until
        then, while either is referred to.

        With `blocking=False` it does not wait, and returns None if the lock is held.

        Raises LockHeld for a try and WaitTimeout after a wait that found the lock held, Overloaded, Unavailable,
        Unauthenticated, PermissionDenied, InvalidRequest, ClientClosed and ForkedProcess.
        """
        held: Held | None = run(self._core, self._acquire_or_none, blocking, undo=self._undo)
        return held

    def release(self) -> None:
        """Gives back what this thread has taken last by `acquire`, as `Lock.release`. Raises RuntimeError if there is
        none."""
        run(self._core, self._release, cancels=False)

    def __enter__(self) -> Held:
        held: Held = run(self._core, self._enter, undo=self._undo)
        return held

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        run(self._core, self._exit, error, cancels=False)
