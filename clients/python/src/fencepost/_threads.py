"""How the coroutines of this package run in threads.

`Threads` has blocking operations, so that no coroutine ever suspends: a worker takes it to its end in one step.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import queue
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

import grpc

from ._clock import now

T = TypeVar("T")
log = logging.getLogger("fencepost")

# So often a thread that waits runs Python code, in which another thread can raise an error, in seconds.
_POLL = 0.1
# For how many seconds a thread waits for the end of its work after it was interrupted, and a worker for more work.
_INTERRUPTED, _IDLE = 5.0, 2.0
_DAY = 86_400.0

_running: ContextVar[_Job | None] = ContextVar("fencepost_job", default=None)


def run(core: Any, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, undo: Any = None) -> T:
    """Runs a coroutine function over `Threads`, as `Threads.run`."""
    result: T = core.runtime.run(work, arguments, undo)
    return result


def iterate(core: Any, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """The items of a generator over `Threads`."""
    try:
        with suppress(StopAsyncIteration):
            while True:
                yield run(core, items.asend, None)
    finally:
        run(core, items.aclose)


class _Job:
    """A coroutine of blocking operations, which a worker runs to its end, and for which another thread may wait.

    The operations wait in C for one queue, which brings the end of a call, or None once if the job is cancelled.
    """

    def __init__(self, work: Callable[..., Coroutine[Any, Any, Any]], arguments: Any, caller: Any, context: Context) -> None:
        self._work, self._arguments, self.caller, self._context = work, arguments, caller, context
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # The call whose messages it reads: only the call's own end ends that.
        self.reads: Any = None
        self.is_cancelled = False
        self._has_begun = False
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._outcome: tuple[Any, BaseException | None] | None = None
        self._undo: Any = None
        self._mutex = threading.Lock()

    def run(self) -> None:
        """Runs it, in a worker; once, however often it was submitted."""
        with self._mutex:
            if self._has_begun:
                return
            self._has_begun = True
        self._context.run(self._run)

    def _run(self) -> None:
        _running.set(self)
        value, failed = None, None
        try:
            value = _finish(self._work(*self._arguments))
        except BaseException as error:
            failed = error
            if not self.caller:
                log.error("work in the background failed", exc_info=error)
        with self._mutex:
            self._outcome, undo = (value, failed), self._undo
        self._ended.put(None)
        if undo and not failed:
            self.inbox = queue.SimpleQueue()  # Without the cancellation.
            _finish(undo(value))

    @property
    def has_ended(self) -> bool:
        """Whether it has a result."""
        return self._outcome is not None

    def wait(self, timeout: float) -> None:
        """Waits for its end, at most so many seconds."""
        end = now() + timeout
        while not self._outcome and (left := end - now()) > 0:
            with suppress(queue.Empty):
                self._ended.get(timeout=min(left, _POLL))

    def result(self) -> Any:
        """What it has returned or raised, after its end."""
        assert self._outcome
        value, error = self._outcome
        try:
            if error:
                raise error
            return value
        finally:
            del self, error  # The traceback of the error must not keep it.

    def cancel(self, undo: Any) -> Coroutine[Any, Any, None] | None:
        """Raises CancelledError in it, once. If it ends without an error all the same, its result is undone: by its worker,
        or, if it has ended, by what this returns."""
        with self._mutex:
            if self._outcome:
                value, failed = self._outcome
                undoing: Coroutine[Any, Any, None] | None = undo(value) if undo and not failed else None
                return undoing
            self._undo, self.is_cancelled = undo, True
            self.inbox.put(None)
        return None

    def receive(self, timeout: float | None) -> Any:
        """The next end of a call, or None after so many seconds. Raises CancelledError once if the job is cancelled."""
        with suppress(queue.Empty):
            if (item := self.inbox.get(timeout=timeout)) is None:
                raise asyncio.CancelledError
            return item


def _finish(work: Coroutine[Any, Any, T]) -> T:
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a blocking operation has suspended")


def _own_job() -> _Job:
    job = _running.get()
    assert job
    return job


class Event:
    """An event. Its waiters may be interrupted: it has no lock that they would leave locked."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[queue.SimpleQueue[None]] = []

    def set(self) -> None:
        """Wakes the waiters."""
        self._is_set = True
        for waiter in list(self._waiters):
            waiter.put(None)

    def wait(self, timeout: float) -> None:
        """Waits at most so many seconds."""
        waiter, end = queue.SimpleQueue[None](), now() + timeout
        try:
            self._waiters.append(waiter)
            while not self._is_set and (left := end - now()) > 0:
                with suppress(queue.Empty):
                    waiter.get(timeout=min(left, _POLL))
        finally:
            with suppress(ValueError):  # The interrupt came before.
                self._waiters.remove(waiter)


class Threads:
    """Blocks the calling thread, which an error may interrupt at any moment: KeyboardInterrupt, or one that another thread
    raises in it. In the midst of `threading` or `grpc` it would leave a lock of theirs locked for ever, and in the midst
    of this package it would leave half of a change. So all work runs in workers, and the caller only waits for it, in C.
    """

    grpc: Any = grpc
    event: Any = Event

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pid = os.getpid()
        # One worker always waits, so that a caller never starts a thread: an interrupt can get into that.
        _start(self._jobs, [])
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def run(self, work: Callable[..., Coroutine[Any, Any, Any]], arguments: Any, undo: Any) -> Any:
        """The result of a coroutine function, which a worker runs.

        If this thread is interrupted meanwhile, the coroutine is cancelled, as a task is: at its next wait. It has 5 s to
        end, and goes on in the background then. `undo` takes a result that the caller did not get.
        """
        if os.getpid() != self._pid:  # A child process has no workers, and must not wait for one.
            return _finish(work(*arguments))
        job = _Job(work, arguments, threading.current_thread(), copy_context())
        try:
            self._jobs.put(job)
            job.wait(math.inf)
            return job.result()
        except BaseException:
            if undoing := job.cancel(undo):
                self.spawn(undoing)
            elif not job.has_ended:
                # Once more, because the interrupt may have come before.
                self._jobs.put(job)
                if call := job.reads:
                    self._jobs.put(_Job(self._end, (call,), None, Context()))
                job.wait(_INTERRUPTED)
            raise
        finally:
            del job

    async def _end(self, call: Any) -> None:
        call.cancel()

    @staticmethod
    def current() -> Any:
        """The thread for which this runs."""
        job = _running.get()
        return job.caller if job and job.caller else threading.current_thread()

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
        call = self.start(method, request, **options)
        try:
            return await self.result(call)
        except asyncio.CancelledError:
            call.cancel()
            raise

    def start(self, method: Any, request: Any, **options: Any) -> Any:
        """Begins a call, which `first`, `result` or `messages` waits for and its own `cancel` ends."""
        return getattr(method, "future", method)(request, **options)

    async def first(self, calls: Sequence[Any], timeout: float | None) -> Any:
        """The last of these calls when it has ended, or an earlier one that was answered without an error before, or None
        after so many seconds."""
        job = _own_job()
        calls[-1].add_done_callback(job.inbox.put)
        end = None if timeout is None else now() + timeout
        while (ended := job.receive(end and max(end - now(), 0))) is not calls[-1]:
            if ended is None or (ended in calls and ended.code() is grpc.StatusCode.OK):
                break
        return ended

    async def result(self, call: Any) -> Any:
        """The response of a call that was started."""
        await self.first([call], None)
        return call.result()

    class messages:
        """What a call answers as a stream."""

        def __init__(self, call: Any) -> None:
            self._call = call

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            job = _own_job()
            job.reads = self._call
            try:
                if not job.is_cancelled:
                    for message in self._call:
                        return message
                    raise StopAsyncIteration
            except grpc.RpcError:
                if not job.is_cancelled:
                    raise
            finally:
                job.reads = None
            raise asyncio.CancelledError

    async def sleep(self, delay: float) -> None:
        """Waits so many seconds."""
        job, end = _own_job(), now() + delay
        while (left := end - now()) > 0:
            job.receive(left)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine beside its caller."""
        self._jobs.put(_Job(lambda: work, (), None, Context()))

    async def finish(self, work: Coroutine[Any, Any, None], limit: float | None) -> None:
        """Waits for the end of a coroutine for at most so many seconds. It goes on when they are over, or if its caller is
        cancelled meanwhile."""
        job, end = _own_job(), now() + (math.inf if limit is None else limit)
        failures = list[BaseException]()

        async def ending() -> None:
            try:
                await work
            except BaseException as error:
                failures.append(error)
            finally:
                job.inbox.put(ending)

        self.spawn(ending())
        while (left := end - now()) > 0 and job.receive(min(left, _DAY)) is not ending:
            pass
        if failures:
            raise failures[0]


def _start(jobs: queue.SimpleQueue[_Job | None], idle: list[None]) -> None:
    threading.Thread(target=_serve, args=(jobs, idle), name="fencepost", daemon=True).start()


def _serve(jobs: queue.SimpleQueue[_Job | None], idle: list[None]) -> None:
    """Runs jobs, up to the None that follows the end of the client. `idle` has an item for each worker that waits; whoever
    finds that it was the last one starts the next."""
    while True:
        idle.append(None)
        job = None
        try:
            job = jobs.get(timeout=_IDLE)
            is_over = job is None
        except queue.Empty:
            is_over = False
        idle.pop()
        if is_over:
            jobs.put(None)
            return
        if job:
            if not idle:
                with suppress(RuntimeError):  # The system has no more threads. This one goes on later.
                    _start(jobs, idle)
            job.run()
        elif idle:
            return
