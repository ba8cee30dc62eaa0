"""The client for asyncio, its locks and its elections: as those of `client`, `lock` and `election`, with coroutines."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast, overload

from . import _tracing
from ._clock import FOREVER, Time
from ._core import Core, EventLoop
from ._held import HeldLock
from ._requests import BaseClient, Request, check_job, check_result, message
from ._threads import current
from .errors import LeaseLost, LockHeld
from .v1.election_pb2 import Leader
from .v1.lock_pb2 import LockChange, LockState, LockSummary

P = ParamSpec("P")
T = TypeVar("T")
Held = TypeVar("Held")


class AsyncLock(HeldLock):
    """A held lock of an `AsyncClient`."""

    async def release(self) -> None:
        """Gives the lock back, within 5 s, also if the task is cancelled meanwhile. A second release does nothing.

        Raises LeaseLost if the lease had ended before, so that another client may have held the lock, and NotReleased if
        no server has confirmed the release: the lock then stays held for at most the TTL.
        """
        await self._core.release(self)

    async def extend(self, ttl: Time) -> None:
        """Renews the lease at once for `ttl` (seconds or a timedelta), which later renewals are for too. It never ends
        sooner than before. Raises LeaseLost, InvalidRequest for a TTL outside the bounds, Unavailable. If it is
        cancelled, the lease may have been renewed."""
        await self._core.extend(self, ttl)

    async def update_metadata(self, metadata: Mapping[str, str]) -> None:
        """Replaces what operators see: at most 16 entries and 4096 bytes. Raises LeaseLost, InvalidRequest, Unavailable.
        If it is cancelled, they may have been replaced."""
        await self._core.update_metadata(self, metadata)

    async def wait_lost(self) -> LeaseLost:
        """Waits for the loss or the release of the lease. Cancelling it has no effect on the lock."""
        self._core.session.check()
        await self._ended.wait()
        assert self.loss
        return self.loss


class AsyncLeadership(AsyncLock):
    """The lock of an election while it is held."""

    async def proclaim(self, value: str) -> None:
        """Replaces the value that observers see: at most 4096 bytes. Raises LeaseLost, InvalidRequest, Unavailable. If it
        is cancelled, it may have been replaced."""
        await self._core.proclaim(self, value)


class _Block:
    """The task of an `async with` block, which the loss of a lease cancels."""

    def __init__(self, locks: list[HeldLock]) -> None:
        self.locks = locks
        self._task: Any = asyncio.current_task()
        self._is_over = self._is_cancelled = False
        self._cancelled_before = self._cancelling()
        for lock in locks:
            lock.on_lost(self._cancel)

    def _cancelling(self) -> int:
        # Python 3.10 does not count who has cancelled a task.
        return int(self._task.cancelling()) if hasattr(self._task, "cancelling") else 0

    def _cancel(self, loss: LeaseLost) -> None:
        if not self._is_over and not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()

    def end(self, error: BaseException | None) -> BaseException | None:
        """The error of the block, without the cancellation by the loss. One by anybody else stays."""
        self._is_over = True
        if self._is_cancelled and hasattr(self._task, "uncancel"):
            self._task.uncancel()
        is_loss = self._is_cancelled and isinstance(error, asyncio.CancelledError)
        return None if is_loss and self._cancelling() <= self._cancelled_before else error


class AsyncLockRequest(Request, Generic[Held]):
    """A request for a lock. An `async with` block takes it, and gives it back however the block ends.

    The block is cancelled when the lease is or may be lost, and raises LeaseLost then. Its end raises NotReleased if no
    server has confirmed the release. Another error of the block comes first.

    A request can be used again, and by several tasks at once; each use takes the lock anew. A task that is cancelled
    while it waits leaves the queue, and a lock that it was granted in this moment is released.
    """

    @overload
    async def acquire(self) -> Held: ...

    @overload
    async def acquire(self, blocking: Literal[False]) -> Held | None: ...

    async def acquire(self, blocking: bool = True) -> Held | None:
        """Takes the lock, to be released by hand: by `release` of what is returned, or of this request. It is renewed until
        then, while either is referred to.

        With `blocking=False` it does not wait, and returns None if the lock is held.

        Raises LockHeld for a try and WaitTimeout after a wait that found the lock held, Overloaded, Unavailable,
        Unauthenticated, PermissionDenied, InvalidRequest, ClientClosed and ForkedProcess.
        """
        held: Held | None = await self._acquire_or_none(blocking)
        return held

    async def release(self) -> None:
        """Gives back what this task has taken last by `acquire`, as `AsyncLock.release`. Raises RuntimeError if there is
        none."""
        await self._release()

    async def __aenter__(self) -> Held:
        held: Held = await self._enter(_Block)
        return held

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        block = self._last(is_block=True).entered
        await self._core.leave(self._core.release_all(block.locks, self._at_least), block.end(error))

    def _current(self) -> Any:
        return current()


class AsyncElection:
    """An election, whose candidates are the owners of their clients."""

    def __init__(self, core: Core, name: str) -> None:
        self._core, self.name = core, name

    def campaign(
        self, value: str = "", *, wait: Time | None = None, ttl: Time | None = None
    ) -> AsyncLockRequest[AsyncLeadership]:
        """A request to lead: in its `async with` block this client leads. `value` is what observers see, such as an
        address. `wait` and `ttl` are seconds or a timedelta, as for `AsyncClient.lock`."""
        request = message(self.name, ttl, {"value": value})
        return AsyncLockRequest(self._core, request, wait, held=AsyncLeadership)

    async def lead(
        self,
        elected: Callable[[AsyncLeadership], Awaitable[T]],
        deposed: Callable[[LeaseLost], object] | None = None,
        *,
        value: str = "",
        ttl: Time | None = None,
    ) -> T:
        """Campaigns until this client leads, and awaits `elected`; returns what it returns, and resigns.

        `elected` is cancelled when the leadership is or may be lost. `deposed` is called then, and the next campaign
        begins. Cancelling this resigns, or leaves the queue.
        """
        while True:
            try:
                async with self.campaign(value, wait=FOREVER, ttl=ttl) as leadership:
                    return await elected(leadership)
            except LeaseLost as loss:
                if deposed:
                    _tracing.call(deposed, loss)

    async def leader(self) -> Leader | None:
        """Who leads now: its `candidate`, `fencing_token` and `value`. Raises Unavailable."""
        return await self._core.leader(self.name)

    def observe(self) -> AsyncGenerator[Leader | None, None]:
        """The present leader, or None if nobody leads, then each change, without an end.

        It goes on when servers restart, and never goes back to an older leader. Raises PermissionDenied and ClientClosed.
        Leaders of a moment may be left out. Cancelling it ends it.
        """
        return self._core.observe(self.name)


class AsyncClient(BaseClient[AsyncLockRequest[AsyncLock], AsyncLockRequest[list[AsyncLock]]]):
    """A client of Fencepost for asyncio, for one event loop, and for the next one when that is closed.

    Its arguments are those of `Client`; `token` may be a coroutine function. A task of the event loop renews all leases
    while locks are held: a loop that is blocked for longer than the TTL loses them. Nothing is sent before the first call. A
    child process that was forked cannot use a client that its parent has used: its calls raise ForkedProcess.

    Raises ValueError for an argument that cannot be used, OSError for a file that cannot be read, and RuntimeError in a
    process whose threads gevent or eventlet have replaced.
    """

    _kinds = EventLoop().notify, AsyncLock, AsyncLockRequest

    def once(
        self, name: str, *, at_least: Time = 0, ttl: Time | None = None
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T | None]]]:
        """A decorator for a job that several machines start at the same time: the first one runs it, and the others return
        None at once.

        The lock stays held for `at_least` (seconds or a timedelta) after its grant, also if the job ends sooner or its
        process exits, so that a machine whose clock is late does not run it again. The job is a coroutine function, or a
        function that runs the job. Raises TypeError for another one, and InvalidRequest before the job for a time beyond the
        TTLs of the namespace.
        """
        request = self._ask(message(name, ttl), None, at_least=at_least)

        def decorate(job: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T | None]]:
            check_job(job, is_async=True)

            @functools.wraps(job)
            async def once(*args: P.args, **kwargs: P.kwargs) -> T | None:
                async with AsyncExitStack() as held:
                    try:
                        await held.enter_async_context(request)
                    except LockHeld:
                        return None
                    result: Any = job(*args, **kwargs)
                    if inspect.isawaitable(result):
                        result = await result
                    check_result(result)
                    return cast(T, result)

            return once

        return decorate

    def election(self, name: str) -> AsyncElection:
        """An election: the exclusive lock of this name, whose holder leads."""
        return AsyncElection(self._core, name)

    async def get(self, name: str) -> LockState:
        """Who holds a lock and who waits for it. Raises Unavailable and PermissionDenied."""
        return await self._core.get(name)

    def watch(self, name: str) -> AsyncGenerator[LockState | LockChange, None]:
        """The state of a lock, then each change, without an end. After a gap, such as a restart of the server, a state
        follows again. Raises PermissionDenied and ClientClosed. Cancelling it ends it."""
        return self._core.watch(name)

    async def check_token(self, name: str, token: int) -> bool:
        """Asks the server whether a fencing token holds a lock at this moment. Raises Unavailable, PermissionDenied."""
        return await self._core.check_token(name, token)

    async def force_release(self, name: str, token: int) -> None:
        """Takes a lock from the holder with this token. Raises LeaseLost if it does not hold it, and PermissionDenied."""
        await self._core.force_release(name, token)

    async def close(self) -> None:
        """Releases all locks of this client, ends its waits (which raise ClientClosed) and closes its connections, within
        5 s, also if it is cancelled. A second call does nothing. Raises NotReleased if a release was not confirmed."""
        await self._core.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        await self._core.leave(self.close(), error)

    def list(self, prefix: str = "") -> AsyncGenerator[LockSummary, None]:
        """The locks in use whose names begin so, by name; not a snapshot. Raises Unavailable and PermissionDenied."""
        return self._core.locks(prefix)
