"""The two ways in which the coroutines of this package run: in an event loop, or in threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import grpc.aio

from ._clock import now
from ._threads import Threads, log
from .errors import Unavailable

T = TypeVar("T")

# How many calls a client with an event loop sends at once, and for how many seconds another one waits for its turn.
_AT_ONCE, _TURN = 100, 10.0


class EventLoop:
    """Suspends the running task."""

    grpc: Any = grpc.aio
    event: Any = asyncio.Event
    current = staticmethod(asyncio.current_task)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    class Box:
        """A queue between tasks."""

        def __init__(self) -> None:
            self._queue: asyncio.Queue[Any] = asyncio.Queue()
            self.put = self._queue.put_nowait

        async def get(self, timeout: float) -> Any:
            """The next item, or None after so many seconds."""
            with suppress(asyncio.TimeoutError):
                return await asyncio.wait_for(self._queue.get(), max(timeout, 0))

        async def requests(self) -> Any:
            """The items up to the first None, for a call that takes a stream."""
            while item := await self._queue.get():
                yield item

    async def call(self, method: Any, request: Any, **options: Any) -> Any:
        """The response of a call."""
        # The deadline of a call counts from its turn, so that many at once do not exceed theirs while they wait for each
        # other. A turn never comes behind servers that do not answer.
        turn = None
        if not self._turns.locked():
            await self._turns.acquire()
        else:
            turn = asyncio.ensure_future(self._turns.acquire())
        try:
            if turn:
                await asyncio.wait([turn], timeout=_TURN)
            return await self._call(method, request, **options)
        finally:
            if not turn or (not turn.cancel() and not turn.cancelled()):
                self._turns.release()

    async def _call(self, method: Any, request: Any, **options: Any) -> Any:
        task: Any = asyncio.current_task()
        call = method(request, **options)
        if not hasattr(task, "cancelling"):  # Python 3.10.
            try:
                return await self.result(call)
            finally:
                call.cancel()
        try:
            return await call
        except asyncio.CancelledError:
            if task.cancelling():
                raise
            raise Unavailable("CANCELLED", "the connection was closed") from None

    def start(self, method: Any, request: Any, **options: Any) -> Any:
        """Begins a call, which `first`, `result` or `messages` waits for and its own `cancel` ends."""
        return method(request, **options)

    async def first(self, calls: Sequence[Any], timeout: float | None) -> Any:
        """The last of these calls when it has ended, or an earlier one that was answered without an error before, or None
        after so many seconds."""
        ended, end = asyncio.Event(), None if timeout is None else now() + timeout
        for call in calls:
            call.add_done_callback(lambda _: ended.set())
        while True:
            # `asyncio.wait_for` of Python 3.11 overlooks a cancellation that comes with the end.
            waiting = asyncio.ensure_future(ended.wait())
            try:
                done, _ = await asyncio.wait([waiting], timeout=end and max(end - now(), 0))
            finally:
                waiting.cancel()
            for call in calls:
                if call.done() and (call is calls[-1] or await call.code() is grpc.StatusCode.OK):
                    return call
            if not done:
                return None
            ended.clear()

    async def result(self, call: Any) -> Any:
        """The response of a call that was started."""
        # A call that ends with its channel raises CancelledError, as if its task was cancelled. To tell the two apart, it
        # is not awaited before it is done.
        await self.first([call], None)
        if call.cancelled():
            raise Unavailable("CANCELLED", "the connection was closed")
        return await call

    def messages(self, call: Any) -> Any:
        """What a call answers as a stream."""
        return call

    async def sleep(self, delay: float) -> None:
        """Waits so many seconds."""
        await asyncio.sleep(delay)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Runs a coroutine beside its caller."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # The loop itself does not keep its tasks.
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, work: Coroutine[Any, Any, None], limit: float | None) -> None:
        """Waits for the end of a coroutine for at most so many seconds. It goes on when they are over, or if its caller is
        cancelled meanwhile."""
        done, _ = await asyncio.wait([self.spawn(work)], timeout=limit)
        for task in done:
            task.result()


Runtime = Threads | EventLoop


async def notify(callback: Callable[[Any], Any], argument: Any) -> None:
    """Calls a user's callback, which may be a coroutine function."""
    try:
        if inspect.isawaitable(result := callback(argument)):
            await result
    except Exception:
        log.exception("a callback failed")
