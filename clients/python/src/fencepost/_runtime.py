"""The two ways in which the coroutines of this package run: in an event loop, or in the threads that call them.

`Threads` has blocking operations, so that no coroutine ever suspends: `run` takes it to its end in the calling thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import grpc
import grpc.aio

from .errors import Unavailable

T = TypeVar("T")
log = logging.getLogger("fencepost")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine over `Threads`."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a blocking operation has suspended")


def iterate(items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """The items of a generator over `Threads`."""
    try:
        with suppress(StopAsyncIteration):
            while True:
                yield run(items.asend(None))
    finally:
        run(items.aclose())


class Threads:
    """Blocks the calling thread."""

    grpc: Any = grpc
    event: Any = threading.Event
    current = staticmethod(threading.current_thread)

    def __init__(self) -> None:
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fencepost")

    class Box:
        """A queue between threads."""

        def __init__(self) -> None:
            self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self.put = self._queue.put

        async def get(self, timeout: float) -> Any:
            """The next item, or None after so many seconds."""
            with suppress(queue.Empty):
                return self._queue.get(timeout=max(timeout, 0))

        def requests(self) -> Any:
            """The items up to the first None, for a call that takes a stream."""
            return iter(self._queue.get, None)

    async def call(self, method: Any, request: Any, **options: Any) -> Any:
        """The response of a call."""
        return method(request, **options)

    def start(self, method: Any, request: Any, **options: Any) -> Any:
        """Begins a call, which `result` or `messages` waits for and its own `cancel` ends."""
        # In a thread of its own, because an interrupt of this one in the midst would leave a lock of the channel locked.
        return self._starter.submit(getattr(method, "future", method), request, **options).result()

    async def result(self, call: Any, timeout: float | None) -> Any:
        """The response of a call that was started, or None after so many seconds."""
        with suppress(grpc.FutureTimeoutError):
            return call.result(timeout)

    class messages:
        """What a call answers as a stream."""

        def __init__(self, call: Any) -> None:
            self._call = call

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            for message in self._call:
                return message
            raise StopAsyncIteration

    async def wait(self, event: threading.Event, timeout: float | None) -> None:
        """Waits for an event, at most so many seconds."""
        event.wait(timeout)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine beside its caller."""
        threading.Thread(target=run, args=(work,), name="fencepost", daemon=True).start()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end, also if its caller is cancelled meanwhile."""
        return await work


class EventLoop:
    """Suspends the running task."""

    grpc: Any = grpc.aio
    event: Any = asyncio.Event
    current = staticmethod(asyncio.current_task)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()

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
        task: Any = asyncio.current_task()
        call = method(request, **options)
        if not hasattr(task, "cancelling"):  # Python 3.10.
            try:
                return await self.result(call, None)
            finally:
                call.cancel()
        try:
            return await call
        except asyncio.CancelledError:
            if task.cancelling():
                raise
            raise Unavailable("CANCELLED", "the connection was closed") from None

    def start(self, method: Any, request: Any, **options: Any) -> Any:
        """Begins a call, which `result` or `messages` waits for and its own `cancel` ends."""
        return method(request, **options)

    async def result(self, call: Any, timeout: float | None) -> Any:
        """The response of a call that was started, or None after so many seconds."""
        # A call that ends with its channel raises CancelledError, as if its task was cancelled. To tell the two apart, it
        # is not awaited before it is done.
        done = asyncio.Event()
        call.add_done_callback(lambda _: done.set())
        await self.wait(done, timeout)
        if call.done() and call.cancelled():
            raise Unavailable("CANCELLED", "the connection was closed")
        return await call if call.done() else None

    def messages(self, call: Any) -> Any:
        """What a call answers as a stream."""
        return call

    async def wait(self, event: asyncio.Event, timeout: float | None) -> None:
        """Waits for an event, at most so many seconds."""
        with suppress(asyncio.TimeoutError):
            await (event.wait() if timeout is None else asyncio.wait_for(event.wait(), timeout))

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Runs a coroutine beside its caller."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # The loop itself does not keep its tasks.
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end, also if its caller is cancelled meanwhile."""
        return await asyncio.shield(self.spawn(work))


Runtime = Threads | EventLoop


async def notify(callback: Callable[[Any], Any], argument: Any) -> None:
    """Calls a user's callback, which may be a coroutine function."""
    try:
        if inspect.isawaitable(result := callback(argument)):
            await result
    except Exception:
        log.exception("a callback failed")
