"""The calls of the API: their deadlines, their repetitions, and how an acquire waits or is undone."""

from __future__ import annotations

import asyncio
import math
import random
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, TypeVar

import grpc

from . import _tracing
from ._clock import duration, now
from ._connections import Connection, Connections
from ._runtime import Runtime
from .errors import (
    ClientClosed,
    FencepostError,
    LeaseLost,
    Overloaded,
    Unauthenticated,
    Unavailable,
    WaitTimeout,
    incomplete,
    is_unanswered,
    of_call,
)
from .v1 import lock_pb2 as pb

Request = TypeVar("Request")
Response = TypeVar("Response")
T = TypeVar("T")
Method = Callable[[Connection], "grpc.UnaryUnaryMultiCallable[Request, Response]"]

# The limits of one call, and of a call with its repetitions, in seconds.
ATTEMPT, CALL = 5.0, 10.0
# A wait is handed over after so many seconds to a second call, before the idle limit of a proxy, 60 s in nginx, cuts it.
HANDOVER = 45.0
# For how many seconds a call goes on when another one was granted: it finds the same claim.
LATE_ANSWER = 2.0
# What one call asks to wait at most.
LONGEST_WAIT = 60.0
# For how many seconds a release is repeated, and the caller waits for an abandoned acquire to be undone.
CLEAN_UP = 5.0
# For how many seconds an abandoned acquire is undone: both of its connections may be silent.
UNDO = 15.0


class Backoff:
    """The pauses between repetitions, in seconds: what the server asks for, or else 0.1 to 2 s with jitter."""

    def __init__(self) -> None:
        self._next = 0.1

    def pause(self, error: FencepostError) -> float:
        """The next pause."""
        pause, self._next = self._next * random.uniform(0.5, 1), min(self._next * 2, 2.0)
        return pause if error.retry_after is None else error.retry_after


class Calls:
    """Sends requests to one server after the other, until one answers."""

    def __init__(self, connections: Connections, runtime: Runtime) -> None:
        self.connections, self.settings, self.runtime = connections, connections.settings, runtime
        # Those that are under way.
        self.acquiring: set[_Acquire] = set()

    async def call(self, method: Method[Request, Response], request: Request, limit: float = CALL) -> Response:
        """A call that is repeated for at most `limit` seconds while no server answers."""
        end, backoff = now() + limit, Backoff()
        while True:
            try:
                return await self.once(
                    self.connections.current(), method, request, min(ATTEMPT, max(limit / 2, 2.5), end - now())
                )
            except FencepostError as error:
                pause = backoff.pause(error)
                if not is_unanswered(error) or now() + pause >= end:
                    raise
            await self.runtime.sleep(pause)

    async def once(self, at: Connection, method: Method[Request, Response], request: Request, limit: float) -> Response:
        """One call, or two if the file has another bearer token than the one that was refused."""
        while True:
            sent = now()
            try:
                options = {"timeout": max(limit, 0.001), "metadata": self.settings.metadata()}
                response: Response = await self.runtime.call(method(at), request, **options)
                at.answered = now()
                return response
            except Exception as error:
                failed = await self.failed(at, error, sent)
                if not isinstance(failed, Unauthenticated) or not self.settings.read_token():
                    raise failed from error

    async def failed(self, at: Connection, error: Exception, sent: float = math.inf) -> FencepostError:
        """The error for what a call raised. Its connection is replaced if no server answered, unless the server is only
        slow: it has answered another call since this one was sent."""
        failed = of_call(error) if isinstance(error, grpc.RpcError) else error
        if at.is_closed and not isinstance(failed, FencepostError):
            failed = Unavailable("CANCELLED", "the connection was closed")
        if not isinstance(failed, FencepostError):
            raise failed
        if not is_unanswered(failed):
            at.answered = now()
        elif failed.reason != "DEADLINE_EXCEEDED" or at.answered < sent:
            await self.connections.replace(at, failed)
        return failed

    async def stream(
        self, method: Callable[[Connection], Any], request: Any, items: Callable[[Any], list[T]]
    ) -> AsyncGenerator[T, None]:
        """The items of each message of a stream, which is opened again, also at another server, when it breaks."""
        backoff = Backoff()
        while True:
            at = self.connections.enter_wait()
            call = self.runtime.start(method(at), request, metadata=self.settings.metadata())
            at.streams.add(call)
            try:
                async for message in self.runtime.messages(call):
                    backoff = Backoff()
                    for item in items(message):
                        yield item
                error: FencepostError = Unavailable("UNAVAILABLE", "the stream has ended")
            except (grpc.RpcError, asyncio.CancelledError) as broken:
                self.connections.check(self.connections.is_closing)
                if isinstance(broken, asyncio.CancelledError):
                    raise
                error = await self.failed(at, broken)
                if not self._may_repeat(error):
                    raise error from broken
            finally:
                call.cancel()
                at.streams.discard(call)
                await self.connections.leave_wait(at)
            await self.runtime.sleep(backoff.pause(error))

    def _may_repeat(self, error: FencepostError) -> bool:
        is_refused = isinstance(error, Unauthenticated) and not self.settings.read_token()
        return isinstance(error, (Unavailable, Overloaded, Unauthenticated)) and not is_refused

    async def acquire(self, request: Any, wait: float, keep: Callable[[list[pb.Lease], float], T]) -> T:
        """Passes the leases of an AcquireRequest or AcquireAllRequest, and when it was sent, to `keep`; a wait of zero is a
        try. If this ends otherwise, it leaves no claim behind."""
        acquire = _Acquire(self, request)
        names = [request.name] if isinstance(request, pb.AcquireRequest) else [lock.name for lock in request.locks]
        # Until they are kept, because `close` releases what is kept when none is under way.
        self.acquiring.add(acquire)
        try:
            self.connections.check(self.connections.is_closing)
            with _tracing.acquiring(names, wait):
                response, sent = await (acquire.wait(now() + wait) if wait else acquire.attempt())
                granted = leases(response)
                if len(granted) != len(names):
                    await self.runtime.finish(acquire.undo(), CLEAN_UP)
                    raise incomplete()
            kept = keep(granted, sent)
            acquire.finish(granted)
            return kept
        except Unavailable:
            # It may have been granted all the same. The caller does not wait for a server that does not answer.
            self.runtime.spawn(acquire.undo())
            raise
        except BaseException as error:
            if isinstance(error, ClientClosed) or not isinstance(error, (FencepostError, GeneratorExit)):
                await self.runtime.finish(acquire.undo(), CLEAN_UP)
            raise
        finally:
            self.acquiring.discard(acquire)
            acquire.cancel()


class _Acquire:
    """One attempt to take locks. All of its calls have one request id, by which they find one claim."""

    def __init__(self, calls: Calls, request: Any) -> None:
        self._calls, self._connections, self._runtime = calls, calls.connections, calls.runtime
        self._request = type(request)(
            namespace=calls.settings.namespace, owner=calls.settings.owner, request_id=uuid.uuid4().hex
        )
        self._request.MergeFrom(request)
        self._at: Connection | None = None
        # Its calls that wait, and when each was sent.
        self._started: dict[Any, float] = {}

    def _method(self, at: Connection) -> Any:
        return at.locks.Acquire if isinstance(self._request, pb.AcquireRequest) else at.locks.AcquireAll

    async def attempt(self) -> tuple[Any, float]:
        """Tries, on at most three connections if no server answers."""
        backoff = Backoff()
        for is_last in (False, False, True):
            self._at, sent = self._connections.current(), now()
            try:
                return await self._calls.once(self._at, self._method, self._request, ATTEMPT), sent
            except Unavailable as error:
                if is_last or not is_unanswered(error):
                    raise
                await self._runtime.sleep(backoff.pause(error))
        raise AssertionError

    async def wait(self, end: float) -> tuple[Any, float]:
        """Waits in the queue, also through failures of servers, until `end`."""
        backoff = Backoff()
        while True:
            at, sent = self._connections.enter_wait(), now()
            self._at, part = at, min(max(end - sent, 0.001), LONGEST_WAIT)
            try:
                answer = await self._send(at, part, HANDOVER if end - sent > HANDOVER else None)
                if answer is None:
                    continue  # The next call takes over from this one, which ends when the server has seen that.
                return answer
            except FencepostError as failed:
                error = failed
            finally:
                await self._connections.leave_wait(at)
            self._connections.check(self._connections.is_closing)
            if not isinstance(error, WaitTimeout) or part < LONGEST_WAIT:
                pause = backoff.pause(error)
                if now() + pause >= end or not self._calls._may_repeat(error):
                    raise error
                await self._runtime.sleep(pause)

    async def _send(self, at: Connection, wait: float, timeout: float | None) -> tuple[Any, float] | None:
        request = type(self._request)()
        request.CopyFrom(self._request)
        request.wait.CopyFrom(duration(wait))
        sent = now()
        try:
            options = {"timeout": wait + ATTEMPT, "metadata": self._calls.settings.metadata()}
            call = self._runtime.start(self._method(at), request, **options)
            self._started = {one: then for one, then in self._started.items() if not one.done()} | {call: sent}
            # A store that remembers no requests takes each call for another one, and grants the earlier one.
            ended = await self._runtime.first(list(self._started), timeout)
            if not ended:
                return None
            response = await self._runtime.result(ended)
            at.answered = now() if ended is call else at.answered
            return response, self._started[ended]
        except Exception as error:
            raise await self._calls.failed(at, error, sent) from error

    async def undo(self) -> None:
        """Tries with the same request id: that takes the claim out of the queue, or is given its leases."""
        end, backoff, at = now() + UNDO, Backoff(), self._at
        while self._at and now() < end:
            try:
                # On the connection of the acquire first, where nothing can pass it, unless `close` has ended it.
                at = at if at and not at.is_closed else self._connections.current()
                response = await self._calls.once(at, self._method, self._request, min(CLEAN_UP / 2, end - now()))
                await self._release(leases(response))
                return
            except FencepostError as error:
                if not isinstance(error, Unavailable) or self._connections.is_closing:
                    return
                await self._runtime.sleep(backoff.pause(error))
            at = None

    def finish(self, granted: list[pb.Lease]) -> None:
        """Lets the calls that go on after a grant find it. What they are granted beside it is released."""
        calls, self._started = self._started, {}
        if len(calls) > 1:
            self._runtime.spawn(self._finish(calls, [lease.lease_id for lease in granted]))

    async def _finish(self, calls: dict[Any, float], granted: list[str]) -> None:
        end = now() + LATE_ANSWER
        for call in calls:
            if await self._runtime.first([call], max(end - now(), 0)):
                with suppress(grpc.RpcError, FencepostError):
                    late = leases(await self._runtime.result(call))
                    if [lease.lease_id for lease in late] != granted:
                        await self._release(late)
            call.cancel()

    async def _release(self, granted: list[pb.Lease]) -> None:
        for lease in granted:
            with suppress(LeaseLost):  # The others are still held.
                await self._calls.call(lambda at: at.locks.Release, pb.ReleaseRequest(lease_id=lease.lease_id))

    def cancel(self) -> None:
        """Ends all of its calls."""
        for call in self._started:
            call.cancel()


def leases(response: Any) -> list[pb.Lease]:
    """Those of a response to Acquire or AcquireAll."""
    if isinstance(response, pb.AcquireResponse):
        return [response.lease] if response.HasField("lease") else []
    return list(response.leases)
