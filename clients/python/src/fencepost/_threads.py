"""How threads use coroutines: all clients of a process share one event loop in one thread, in which a caller's job runs.

An error may interrupt a caller at any moment: KeyboardInterrupt, or one that another thread raises in it. So a caller only
posts its job and waits, and holds no lock that others need.
"""

from __future__ import annotations

import _thread
import asyncio
import math
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from ._clock import now
from ._tracing import call, log
from .errors import ClientClosed

T = TypeVar("T")

# So often a thread that waits runs Python code, in which another thread can raise an error, in seconds.
_POLL = 0.1
# For how many seconds a thread waits for the end of its job after it was interrupted.
_INTERRUPTED = 5.0

_caller: ContextVar[Any] = ContextVar("fencepost_caller", default=None)


def current() -> Any:
    """The thread or the task for which this runs."""
    return _caller.get() or asyncio.current_task()


def check_threads() -> None:
    """Raises RuntimeError where gevent or eventlet have replaced threads: the thread of the event loop would not run."""
    for library, module, function, name in (
        ("gevent", "gevent.monkey", "is_module_patched", "threading"),
        ("eventlet", "eventlet.patcher", "is_monkey_patched", "thread"),
    ):
        if (patched := sys.modules.get(module)) and getattr(patched, function)(name):
            raise RuntimeError(f"{library} has patched threads, with which gRPC does not work: use a process without it")


class _Worker:
    """The event loop, in a thread that the interpreter does not wait for."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.thread: int | None = None
        self._work: deque[Callable[[], None]] = deque()
        self._is_woken, self._starts = False, [True]

    def call(self, function: Callable[[], None]) -> None:
        """Runs a function in the event loop. Those that gather wake it once."""
        self._work.append(function)
        if not self._is_woken:
            self._is_woken = True
            self.wake()

    def wake(self) -> None:
        """Begins or wakes the loop, maybe once more."""
        if self._loop:
            self._loop.call_soon_threadsafe(self._run)
        else:  # Not by `threading`, in the midst of which an interrupt would leave a lock locked.
            _thread.start_new_thread(self._serve, ())

    def _serve(self) -> None:
        try:
            self._starts.pop()
        except IndexError:  # Another thread was faster.
            return
        loop, self.thread = asyncio.new_event_loop(), _thread.get_ident()
        asyncio.set_event_loop(loop)
        self._loop = loop
        loop.call_soon(self._run)
        while True:
            with suppress(BaseException):  # Such as SystemExit of a user's log handler.
                loop.run_forever()

    def _run(self) -> None:
        self._is_woken = False
        while self._work:
            self._work.popleft()()


_worker = _Worker()


def _begin_anew() -> None:
    global _worker
    _worker = _Worker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


class _Job:
    """A coroutine, for which a thread waits. What is without `wait` and `result` runs in the event loop."""

    def __init__(self, work: Callable[..., Coroutine[Any, Any, Any]], arguments: Any, undo: Any, cancels: bool) -> None:
        self._work, self._arguments, self._undo, self._cancels = work, arguments, undo, cancels
        self._caller, self._context = threading.current_thread(), copy_context()
        self._gate = _thread.allocate_lock()
        self._gate.acquire()
        self._task: asyncio.Task[Any] | None = None
        self._value: Any = None
        self._is_interrupted = False
        self.is_over = False
        self.error: BaseException | None = None

    def begin(self) -> None:
        """Starts it, once."""
        if not self._task and not (self._is_interrupted and self._cancels):
            self._context.run(self._begin)

    def _begin(self) -> None:
        _caller.set(self._caller)
        self._task = asyncio.get_running_loop().create_task(self._work(*self._arguments))
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._value = None if self.error else task.result()
        self.is_over = True
        self._gate.release()
        if self._is_interrupted:
            self.interrupt()

    def interrupt(self) -> None:
        """Cancels it, unless it is what ends anyway. Its caller has no use for its result, which is undone."""
        self._is_interrupted = True
        if self.is_over:
            undo, self._undo = self._undo, None
            if undo and not self.error:
                _tasks.add(task := asyncio.ensure_future(undo(self._value)))
                task.add_done_callback(_tasks.discard)
        elif not self._cancels:
            self.begin()
        elif self._task:
            self._task.cancel()

    def wait(self, limit: float) -> None:
        """Waits for its end, at most so many seconds."""
        end = now() + limit
        while not self.is_over and (left := end - now()) > 0:
            if not self._gate.acquire(timeout=min(left, _POLL)):
                if sys.is_finalizing():  # The thread of the event loop stands still.
                    raise ClientClosed("CLOSED", "the interpreter ends")
                if not self._task:  # An interrupt came between a job and its wake.
                    _worker.wake()

    def result(self) -> Any:
        """What it has returned or raised, after its end."""
        try:
            if self.error:
                raise self.error
            return self._value
        finally:
            del self  # The traceback of the error must not keep it.


# The loop itself does not keep its tasks.
_tasks: set[asyncio.Future[Any]] = set()


def run(
    core: Any, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, undo: Any = None, cancels: bool = True
) -> T:
    """The result of a coroutine function, which runs in the event loop.

    If this thread is interrupted meanwhile, the coroutine is cancelled, or goes on without `cancels`. It has 5 s to end, and
    goes on in the background then. `undo` takes a result that the caller did not get.
    """
    if core.session.is_forked or sys.is_finalizing():
        if cancels:
            core.session.check()
            raise ClientClosed("CLOSED", "the interpreter ends")
        return None  # type: ignore[return-value]  # A child holds nothing, and a lease ends with its TTL.
    job = _Job(work, arguments, undo, cancels)
    if _worker.thread == _thread.get_ident():  # What is collected there, and a user's log handler.
        if cancels:
            raise RuntimeError("the client's own thread cannot wait for it")
        _worker.call(job.begin)
        return None  # type: ignore[return-value]
    try:
        _worker.call(job.begin)
        job.wait(math.inf)
        result: T = job.result()
        return result
    except BaseException:
        if not job.error and not sys.is_finalizing():
            _worker.call(job.interrupt)
            _worker.wake()
            job.wait(_INTERRUPTED)
        raise
    finally:
        del job


def iterate(core: Any, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """The items of a generator of the event loop."""

    async def following() -> T:
        return await items.__anext__()

    try:
        with suppress(StopAsyncIteration):
            while True:
                yield run(core, following)
    finally:
        run(core, items.aclose, cancels=False)


def notify(callback: Callable[[Any], Any], argument: Any) -> None:
    """Calls a user's callback in a thread of its own."""

    try:
        threading.Thread(target=call, args=(callback, argument), name="fencepost-callback", daemon=True).start()
    except RuntimeError as error:  # There are too many threads, or the interpreter ends.
        log("a callback was not called", exc_info=error)
