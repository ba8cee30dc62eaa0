"""Locks for threads: a request for a lock, and the lock while it is held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from ._clock import Time, now, seconds
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
        run(self._core, self._core.release, self)

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
        end = now() + seconds(timeout, "timeout")
        while not self.loss and now() < end:
            # The lease may be renewed meanwhile.
            self._ended.wait(min(end, self._until) - now())
        return self.loss is not None


class LockRequest(Request, Generic[Held]):
    """A request for a lock. A `with` block takes it, and gives it back however the block ends.

    It can be used again, and by several threads at once; each use takes the lock anew. An interrupt of a thread that
    waits, such as Ctrl-C, takes its claim out of the queue.

    The end of a block raises LeaseLost if the lease was lost meanwhile, and NotReleased if no server has confirmed the
    release. An error of the block itself comes first.
    """

    def acquire(self) -> Held:
        """Takes the lock, to be released by hand. Until then it is renewed.

        Raises LockHeld for a try and WaitTimeout after a wait that found the lock held, Overloaded, Unavailable,
        Unauthenticated, PermissionDenied, InvalidRequest, ClientClosed and ForkedProcess.
        """
        held: Held = run(self._core, self._acquire, undo=self._undo)
        return held

    def __enter__(self) -> Held:
        held: Held = run(self._core, self._enter, undo=self._leave)
        return held

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        run(self._core, self._exit, error)
