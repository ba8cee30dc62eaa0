"""The stream of a client: a Session to one server at a time, and at the next one when that does not answer.

It runs in one event loop. Commands that gather while a message is sent share the next one. After a break the next stream
attaches the leases again and sends each command that has no result once more, so that their callers see nothing of it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import secrets
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from typing import Any

import grpc

from . import errors
from ._call import Call
from ._clock import duration, now, of
from ._held import HeldLock
from ._settings import Address, Settings, speaks_tls
from ._tracing import log
from .errors import (
    FencepostError,
    ForkedProcess,
    InvalidRequest,
    Overloaded,
    Unauthenticated,
    Unavailable,
    WaitTimeout,
)
from .v1 import lock_pb2 as pb

# For how many seconds a command goes on without an answer, and how many streams a try may see break.
CALL, TRIES = 10.0, 3
# For how many seconds an abandoned acquire is undone: the connection may be silent, and the next one too. For how many a
# release is repeated.
UNDO, CLEAN_UP = 15.0, 5.0
# For how many seconds a server may be silent: at the start, while it owes an answer, while something waits, and while
# it shuts down.
_OPENING, _SILENT, _WAITING, _DRAINING = 5.0, 4.0, 30.0, 3.0
# How many bytes a command has at most, and how many leases one attaches.
_COMMAND_BYTES, _ATTACHED = 60 << 10, 16
# How many waits and how many other commands are in flight at once, of the 1,000 that a server takes together.
_WAITS, _OTHERS = 800, 150
# For how many seconds a server keeps the places of waits when a stream breaks off.
_GRACE = 10.0
# The longest wait that one command asks for; the next one where the namespace allows less.
_LONGEST_WAITS = (86_400.0, 3_600.0, 60.0)
# For how many seconds a token that was good is tried again, because its file may be replaced a little later.
_TOKEN_GRACE = 5.0
# It looks at the clock at least so often, because timers stand still while the machine is suspended.
_LONGEST_SLEEP = 5.0
try:
    _VERSION = metadata.version("fencepost-client")
except metadata.PackageNotFoundError:
    _VERSION = ""
_OPTIONS: list[tuple[str, Any]] = [
    # Otherwise channels to one address share a connection, and a new channel is no new connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
]
# The authority that gRPC makes of a path is none that HTTP/2 servers accept.
_UNIX_OPTIONS = [*_OPTIONS, ("grpc.default_authority", "localhost")]


class Backoff:
    """The pauses between repetitions, in seconds: what the server asks for, or else 0.1 to 2 s with jitter."""

    def __init__(self) -> None:
        self._next = 0.1

    def pause(self, error: FencepostError) -> float:
        """The next pause."""
        pause, self._next = self._next * random.uniform(0.5, 1), min(self._next * 2, 2.0)
        return pause if error.retry_after is None else error.retry_after


def _answer(answer: Any, sent: float) -> Any:
    return answer


class Command:
    """A command without a result."""

    def __init__(self, message: pb.SessionCommand, end: float = math.inf, wait_end: float | None = None) -> None:
        self.message, self.id = message, 0
        # When it fails without an answer; when the wait of an acquire ends, and after how many breaks a try fails.
        self.end, self.wait_end, self.tries_left = end, wait_end, math.inf
        kind = message.WhichOneof("command")
        self.is_acquire = kind in ("acquire", "acquire_all")
        # Whether a lock stays held without its result.
        self.frees = self.is_acquire or kind in ("release", "renew")
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # When this stream has sent it, or None; whether any has.
        self.sent: float | None = None
        self.was_sent = self.is_abandoned = self.was_superseded = False
        # Whether it is of this stream alone: the next one does not send it again.
        self.is_of_stream = False
        # What makes the value of its future of its answer and when it was sent, and what takes the messages of a watch.
        self.read: Callable[[Any, float], Any] = _answer
        self.watched: Callable[[Any], None] | None = None
        self.backoff, self.longest = Backoff(), 0

    @property
    def is_wait(self) -> bool:
        """Whether it waits in a queue."""
        return self.wait_end is not None and not self.is_abandoned

    def prepare(self, time: float) -> None:
        """Sets how long it waits from now on. One that is abandoned only finds what it was granted."""
        self.message.id = self.id
        if self.wait_end is not None:
            left = 0.0 if self.is_abandoned else min(max(self.wait_end - time, 0.001), _LONGEST_WAITS[self.longest])
            acquire = self.message.acquire if self.message.HasField("acquire") else self.message.acquire_all
            acquire.request.wait.CopyFrom(duration(left))

    def resolve(self, value: Any) -> None:
        """Gives it its result."""
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: FencepostError) -> None:
        """Fails it."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # Its caller may be gone.


class Session:
    """See the module. All of it runs in the event loop, except what says otherwise."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.is_closing, self.is_over = settings, False, False
        self.pid: int | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.locks: dict[str, weakref.ref[HeldLock]] = {}
        self.channel: grpc.Channel | None = None
        self._ids, self._index = itertools.count(1), 0
        # What is to be sent on this stream, and what waits until others have their results.
        self._out: deque[Command] = deque()
        # When the server last said something, when it first did, and when it began to shut down.
        self._heard, self._opened, self._draining_at = 0.0, 0.0, math.inf
        # The last token with which a stream was opened, and since when it is refused.
        self._accepted: str | None = None
        self._refused: set[str | None] = set()
        self._refused_at, self._began = math.inf, 0.0
        self._reason: FencepostError | None = None
        self._last_error: FencepostError | None = None
        self._begin()

    def _begin(self) -> None:
        self.pending: dict[int, Command] = {}
        self._is_flushing = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tick_at, self._beat_at, self._beat_sent = math.inf, math.inf, -math.inf
        self._call: Call | None = None
        self._reset()

    # Its use.

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child of the one that used it: nothing of it works here. Any thread may ask."""
        return self.pid not in (None, os.getpid())

    def check(self) -> None:
        """Raises ForkedProcess in a child process. Any thread may call it."""
        if self.is_forked:
            raise ForkedProcess("FORKED", "this client was used before the fork: make one in the child process")

    def enter(self) -> None:
        """Binds it to the running event loop. Raises ForkedProcess, ClientClosed, and RuntimeError in a second loop."""
        self.check()
        if self.is_closing:
            raise errors.closed()
        self.bind()

    def bind(self) -> None:
        """The same of a client that is closing."""
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            if self.loop and not self.loop.is_closed():
                raise RuntimeError("the client is used by another event loop, which still runs")
            self.loop, self.pid = loop, os.getpid()
            # By them a server finds the places of the stream before. Not drawn earlier, because a fork copies them.
            self._id, self._numbers = secrets.token_hex(16), itertools.count(1)
            self._begin()

    def send(self, command: Command) -> Command:
        """Sends a command, on this stream and the next ones, until it has a result or its time is over."""
        command.id = next(self._ids)
        if self.is_over:
            command.fail(errors.closed())
            return command
        if command.message.ByteSize() > _COMMAND_BYTES:  # The server would end the stream.
            command.fail(InvalidRequest("INVALID_FIELD", f"the request must have at most {_COMMAND_BYTES} bytes"))
            return command
        self.pending[command.id] = command
        self._out.append(command)
        self._flush_soon()
        self._tick_by(min(command.end, now() + 1))
        self._run()
        return command

    async def request(self, limit: float = CALL, read: Callable[[Any, float], Any] | None = None, **message: Any) -> Any:
        """The answer to a command, within `limit` seconds. If this is cancelled, the command goes on."""
        self.enter()
        return await self.start(limit, read, **message)

    def start(
        self, limit: float = CALL, read: Callable[[Any, float], Any] | None = None, **message: Any
    ) -> asyncio.Future[Any]:
        """The same of one that goes on while the client is closed."""
        self.bind()
        command = Command(pb.SessionCommand(**message), now() + limit)
        command.read = read or command.read
        return self.send(command).future

    def add(self, lock: HeldLock, attached_by: int) -> None:
        """Keeps a lease while its lock is referred to."""
        lease_id, name, loop = lock.lease_id, lock.name, self.loop

        def dropped(_: Any) -> None:  # In any thread.
            if loop and not loop.is_closed():
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._dropped, lease_id, name)

        lock._attached_by = attached_by
        self.locks[lease_id] = weakref.ref(lock, dropped)
        self._tick_by(lock._tell_at)
        self._beat_at = min(self._beat_at, now() + lock._ttl * 3 / 8)

    def remove(self, lock: HeldLock) -> None:
        """Keeps a lease no more."""
        self.locks.pop(lock.lease_id, None)

    def held(self) -> list[HeldLock]:
        """The locks whose leases are kept."""
        return [lock for ref in list(self.locks.values()) if (lock := ref())]

    def abandon(self, command: Command) -> asyncio.Future[Any]:
        """Takes an acquire back, whose caller is gone. What is returned ends when that is done, after 15 s at most."""
        if command.is_abandoned:
            return command.future
        granted = command.future
        command.future = asyncio.get_running_loop().create_future()
        if granted.done() and not granted.cancelled() and not granted.exception():
            self._undo(command, granted.result())
        elif not command.was_sent or command.id not in self.pending:
            self.pending.pop(command.id, None)
            command.resolve(None)
        else:
            command.is_abandoned, command.end, command.tries_left = True, now() + UNDO, math.inf
            if command.sent is None:
                self._again(command)
            else:
                self._now(cancel=pb.SessionCommand.Cancel(id=command.id))
        return command.future

    def _undo(self, command: Command, locks: list[HeldLock]) -> None:
        releasing = asyncio.gather(*map(self.give_back, locks), return_exceptions=True)
        releasing.add_done_callback(lambda _: command.resolve(None))

    def give_back(self, lock: HeldLock, limit: float = CLEAN_UP, keep_for: float = 0) -> asyncio.Future[Any]:
        """Releases a lease, within `limit` seconds; its lock stays taken for `keep_for` seconds."""
        self.locks.pop(lock.lease_id, None)
        lock._end(errors.lost("released"), is_released=True)
        kept = duration(keep_for) if keep_for > 0 else None
        return self.start(limit, release=pb.ReleaseRequest(lease_id=lock.lease_id, keep_for=kept))

    def unwatch(self, command: Command) -> None:
        """Ends a watch."""
        if self.pending.pop(command.id, None) and command.sent is not None:
            self._now(cancel=pb.SessionCommand.Cancel(id=command.id))

    def end(self) -> None:
        """Ends the stream. Any thread may call it."""
        if self.loop and not self.loop.is_closed() and not self.is_forked:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._end)

    async def close(self) -> None:
        """Ends the waits, and after what is being released or undone the stream: within 5 s."""
        end = now() + CLEAN_UP
        for command in list(self.pending.values()):
            if command.is_acquire and not command.is_abandoned:
                command.fail(errors.closed())
                self.abandon(command)
        try:
            while (unconfirmed := [one.future for one in self.pending.values() if one.frees]) and now() < end:
                await asyncio.wait(unconfirmed, timeout=end - now())
        finally:
            self._end()
        if self._task:
            await asyncio.wait([self._task])

    def _end(self) -> None:
        self.is_closing = self.is_over = True
        self._fail_tries(errors.closed(), math.inf)
        if self._task:
            self._task.cancel()
        if self._timer:
            self._timer.cancel()
        self._tick_at = -math.inf

    # The streams, one after the other.

    def _run(self) -> None:
        if not self._task or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        failures, backoff = 0, Backoff()
        while self.pending or self.held():
            address, self._began, self._reason = self.settings.addresses[self._index], now(), None
            token: str | None = None
            try:
                token = await self.settings.token()
                error = await self._stream(address, token)
                error = self._reason or error
            except Exception as broken:  # Such as a file with certificates that is missing for a moment.
                error = broken if isinstance(broken, FencepostError) else Unavailable("UNAVAILABLE", str(broken))
            finally:
                opened = self._opened
                self._reset()
            if was_good := opened and now() - opened > 1:
                failures, backoff = 0, Backoff()
            failures, self._last_error = failures + 1, error
            if final := await self._final(address, token, error, bool(opened), failures):
                self._fail_tries(final, math.inf)
            self._fail_tries(error, 1)
            if not isinstance(error, Unauthenticated):
                self._index = (self._index + 1) % len(self.settings.addresses)
            following = self.settings.addresses[self._index].target
            log("the stream to %s ended, and the next one is to %s: %s", address.target, following, error)
            if failures > (1 if was_good else len(self.settings.addresses) - 1) or error.retry_after:
                await asyncio.sleep(min([backoff.pause(error), *(lock._ttl / 10 for lock in self.held())]))

    async def _stream(self, address: Address, token: str | None) -> FencepostError:
        """Opens a stream, and returns how it ended."""
        if address.is_encrypted:
            channel = grpc.secure_channel(address.target, self.settings.tls(), _OPTIONS)
        else:
            options = _UNIX_OPTIONS if address.target.startswith("unix:") else _OPTIONS
            channel = grpc.insecure_channel(address.target, options)
        ended: asyncio.Future[FencepostError] = asyncio.get_running_loop().create_future()

        def received(message: Any) -> None:
            if ended.done():
                return
            try:
                if isinstance(message, FencepostError):
                    ended.set_result(message)
                    return
                self._heard = now()
                if not self._opened:
                    self._opened, self.channel = self._heard, channel
                    self._accepted, self._refused_at = token, math.inf
                    self._refused.clear()
                for event in message.events:
                    self._event(event)
            except Exception as error:  # A message that cannot be understood.
                ended.set_result(Unavailable("UNAVAILABLE", f"{error!r} in an event of the stream"))

        try:
            self._call = Call(channel, token, received)
            self._greet()
            self._tick_by(now() + 0.5)
            return await ended
        finally:
            if self._call:
                self._call.end()
            self._call = self.channel = None
            channel.close()

    def _greet(self) -> None:
        """The first commands of a stream: who this is, and the leases."""
        first = self._out
        self._out = deque()
        greeting = pb.SessionCommand.Open(client_name="fencepost-python", client_version=_VERSION)
        greeting.session_id, greeting.number = self._id, next(self._numbers)
        greeting.grace.CopyFrom(duration(_GRACE))
        self._now(open=greeting)
        self._attach()
        if self.held():
            self._beat()
        self._out.extend(first)

    def _attach(self) -> None:
        locks = self.held()
        for start in range(0, len(locks), _ATTACHED):
            self._attach_some(locks[start : start + _ATTACHED])

    def _attach_some(self, locks: list[HeldLock]) -> None:
        def attached(_: Any, sent: float) -> None:
            for lock in locks:
                lock._attached_by = command.id

        command = self._now(attached, attach=pb.SessionCommand.Attach(lease_ids=[lock.lease_id for lock in locks]))

    def _flush_soon(self) -> None:
        """Sends what has gathered, once for all that gathers until then."""
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if not self._call or self._draining_at < math.inf:
            return
        while self._out:
            command = self._out.popleft()
            if command.is_of_stream or command.watched:
                self._write(command)
            else:
                self._later[command.is_wait].append(command)
        for later, in_flight, limit in zip(self._later, self._in_flight, (_OTHERS, _WAITS), strict=True):
            while later and len(in_flight) < limit:
                if self._write(command := later.popleft()):
                    in_flight.add(command.id)

    def _write(self, command: Command) -> bool:
        """Sends a command, unless it has ended meanwhile."""
        is_due = self._call is not None and self.pending.get(command.id) is command and command.sent is None
        if self._call and is_due:
            command.sent, command.was_sent = now(), True
            command.prepare(command.sent)
            self._call.send(command.message)
        return is_due

    def _now(self, read: Callable[[Any, float], Any] | None = None, **message: Any) -> Command:
        """Sends a command of this stream alone."""
        command = Command(pb.SessionCommand(**message))
        command.is_of_stream, command.id, command.read = True, next(self._ids), read or command.read
        if self._call:
            self.pending[command.id] = command
            self._out.append(command)
            self._flush_soon()
        return command

    def _reset(self) -> None:
        """Prepares the next stream."""
        self._draining_at, self._heard, self._opened, self._is_beating = math.inf, 0.0, 0.0, False
        self._probed = 0.0
        self._later: tuple[deque[Command], deque[Command]] = deque(), deque()
        self._in_flight: tuple[set[int], set[int]] = set(), set()
        for command in list(self.pending.values()):
            command.sent = None
            if command.is_of_stream:
                del self.pending[command.id]
        for lock in self.held():
            lock._attached_by = math.inf
        self._out = deque(sorted(self.pending.values(), key=lambda command: command.id))

    def _break(self, reason: FencepostError) -> None:
        """Ends this stream, so that the next one begins."""
        if self._call:
            self._reason = self._reason or reason
            self._call.end()

    async def _final(
        self, address: Address, token: str | None, error: FencepostError, was_open: bool, failures: int
    ) -> FencepostError | None:
        """The error of all commands, if no repetition can help."""
        if isinstance(error, Unauthenticated):
            self._refused_at = min(self._refused_at, now())
            is_over = token != self._accepted or now() > self._refused_at + _TOKEN_GRACE
            self._refused.add(token)
            if len(self._refused) >= TRIES:  # A function may return another one each time.
                return error
            with suppress(Exception):  # The next stream needs the token too, and says why there is none.
                return error if is_over and await self.settings.token() == token else None
            return None
        if not isinstance(error, Unavailable):
            return None if isinstance(error, Overloaded) else error
        why = errors.of_tls(error.message, address.target)
        if "closed" in error.message and not (why or was_open or address.is_encrypted) and await speaks_tls(address.target):
            why = f"{address.target} speaks TLS, and its address is without https://"
        return Unavailable("TLS", why) if why and failures >= len(self.settings.addresses) else None

    def _fail_tries(self, error: FencepostError, tries: float) -> None:
        """Fails the commands that have so many tries left at most."""
        for command in list(self.pending.values()):
            command.tries_left -= tries if tries < math.inf else 0
            if command.tries_left <= 0 or tries == math.inf:
                self._over(command, error)

    # What the server says.

    def _event(self, event: pb.SessionEvent) -> None:
        kind = event.WhichOneof("event")
        if kind == "result":
            self._result(event.result)
        elif kind == "ask":
            if not self._is_beating:  # It does not know of a beat that is on its way.
                self._beat()
        elif kind == "kept":
            self._kept(event.kept)
        elif kind == "lost":
            if (ref := self.locks.get(event.lost.lease_id)) and (lock := ref()):
                lock._attached_by = math.inf
            self._lost(event.lost)
        elif kind == "draining":
            self._draining_at = now()
        elif kind in ("watched", "observed"):
            message = getattr(event, kind)
            if (command := self.pending.get(message.id)) and command.watched:
                command.backoff = Backoff()
                command.watched(message)

    def _result(self, result: Any) -> None:
        for in_flight in self._in_flight:
            in_flight.discard(result.id)
        if any(self._later):
            self._flush_soon()
        command = self.pending.get(result.id)
        if not command or command.sent is None:
            return
        sent, command.sent = command.sent, None
        outcome = result.WhichOneof("outcome")
        if outcome == "error":
            self._failed(command, errors.of_command(result.error))
            return
        del self.pending[command.id]
        try:
            value = command.read(getattr(result, outcome), sent)
        except Exception as error:
            self._over(command, error if isinstance(error, FencepostError) else FencepostError("INTERNAL", repr(error)))
            return
        command.read = _answer  # It refers to the client, which ends when it is not referred to.
        if command.is_abandoned or (command.is_acquire and command.future.done()):
            self._undo(command, value)
        else:
            command.resolve(value)

    def _failed(self, command: Command, error: FencepostError) -> None:
        """Decides what becomes of a command that the server has refused."""
        if command.is_of_stream:
            self._over(command, error)
            self._is_beating = self._is_beating and not command.message.HasField("keep_alive")
            if command.message.HasField("attach"):
                asyncio.get_running_loop().call_later(1, self._attach_again, self._began)
            return
        if isinstance(error, Unauthenticated):
            self._break(error)
            return
        if error.reason == "DRAINING" or (self._draining_at < math.inf and error.reason == "INVALID_FIELD"):
            self._draining_at = min(self._draining_at, now())  # The next stream sends it again.
            return
        pause, is_over = 0.0, False
        may_wait = command.is_wait or command.is_abandoned or command.watched is not None
        if error.reason == "SUPERSEDED" and not command.was_superseded:
            command.was_superseded = True
        elif isinstance(error, WaitTimeout) and command.is_wait and (command.wait_end or 0) - now() > 0.05:
            pass  # The next command goes on with the wait.
        elif error.details.get("field") == "wait" and command.longest + 1 < len(_LONGEST_WAITS):
            command.longest += 1
            is_over = (command.wait_end or 0) - now() < _LONGEST_WAITS[command.longest]
        elif isinstance(error, (Unavailable, Overloaded)) and error.reason != "CANCELLED" and may_wait:
            pause = command.backoff.pause(error)
            is_over = now() + pause >= min(command.end, (command.is_wait and command.wait_end) or math.inf)
        else:
            is_over = True
        if is_over:
            self._over(command, error)
        else:
            asyncio.get_running_loop().call_later(pause, self._again, command)

    def _again(self, command: Command) -> None:
        if self.pending.get(command.id) is command and command.sent is None and command not in self._out:
            self._out.append(command)
            self._flush_soon()

    def _over(self, command: Command, error: FencepostError) -> None:
        """Ends a command with an error. An acquire that may have been granted is undone."""
        if isinstance(error, Unavailable) and command.is_acquire and command.was_sent and not command.is_abandoned:
            command.fail(error)
            self.abandon(command)
            return
        self.pending.pop(command.id, None)
        command.read = _answer
        command.resolve(None) if command.is_abandoned else command.fail(error)

    def _beat(self) -> None:
        shortest = min((lock._ttl for lock in self.held()), default=math.inf)
        # A server asks after a third of the TTL. One that is late is not waited for.
        self._beat_sent = now()
        self._beat_at, self._is_beating = self._beat_sent + shortest * 3 / 8, True
        self._now(keep_alive=pb.SessionCommand.KeepAlive())

    def _kept(self, kept: Any) -> None:
        self._is_beating = False
        beat = self.pending.pop(kept.id, None)
        if not beat or beat.sent is None:
            return
        ttls = {one.lease_id: of(one.ttl) for one in kept.new_ttls}
        failed = {one.lease_id for one in kept.not_renewed}
        for lock in self.held():
            # One that was attached later may not have been renewed.
            if lock._attached_by < beat.id and lock.lease_id not in failed:
                lock._renewed(beat.sent, ttls.get(lock.lease_id, lock._ttl))
        for one in kept.not_renewed:
            self._lost(one)

    def _lost(self, lost: Any) -> None:
        if lost.reason == "LEASE_LOST" and (ref := self.locks.get(lost.lease_id)) and (lock := ref()):
            self.remove(lock)
            lock._end(errors.lost(lost.cause))

    def _dropped(self, lease_id: str, name: str) -> None:
        if self.locks.pop(lease_id, None):
            log("the lock %s is not renewed any more: it was dropped without a release", name, is_warning=True)
            self._detach(lease_id)

    def _detach(self, lease_id: str) -> None:
        """Lets a lease end with its TTL."""
        self._now(detach=pb.SessionCommand.Detach(lease_ids=[lease_id]))

    def _attach_again(self, began: float) -> None:
        if self._call and self._began == began:
            self._attach()

    # The clock.

    def _tick_by(self, at: float) -> None:
        if at < self._tick_at:
            self._tick_at = at
            if self._timer:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(max(at - now(), 0), self._tick)

    def _tick(self) -> None:
        self._tick_at, following = math.inf, now() + 1
        try:
            following = self._step(now())
        finally:
            self._tick_by(following)

    def _step(self, time: float) -> float:
        """Does what is due, and returns when something is due next."""
        locks = self.held()
        for lock in locks:
            if lock._tell_at <= time:
                self.remove(lock)
                self._detach(lock.lease_id)  # Not released: its holder may need what is left until its end.
                lock._end(errors.lost("unrenewed"))
        locks = [lock for lock in locks if not lock._loss]
        for command in list(self.pending.values()):
            self._look(command, time)
        if self._call:
            if self._stuck_at(locks) <= time:
                self._break(Unavailable("DEADLINE_EXCEEDED", "the server does not answer"))
            elif self._opened and locks and self._beat_at <= time:
                self._beat()
            elif self._opened and self._probed <= self._heard and self._stuck_at(locks) - _SILENT / 2 <= time:
                # A server answers that at once, also while its store is slow.
                self._probed = time
                self._now(cancel=pb.SessionCommand.Cancel())
        if not (locks or self.pending):
            return math.inf
        self._run()
        due = [time + (1 if self.pending else _LONGEST_SLEEP), *(lock._tell_at for lock in locks)]
        if self._call:
            stuck = self._stuck_at(locks) - (_SILENT / 2 if self._probed <= self._heard else 0)
            due += [max(stuck, time + 0.05), max(self._beat_at, time + 0.05) if locks else math.inf]
        return min(due)

    def _look(self, command: Command, time: float) -> None:
        """Fails a command whose time is over."""
        is_late = command.is_wait and command.sent is None and (command.wait_end or 0) <= time
        if is_late or command.end <= time:
            known = self._last_error if not self._opened else None
            self._over(command, known or Unavailable("DEADLINE_EXCEEDED", "no server answered in time"))

    def _stuck_at(self, locks: list[HeldLock]) -> float:
        """When the server has been silent for too long."""
        beat = self._beat_sent if self._is_beating else -math.inf
        stuck = [max(lock._confirmed + lock._ttl / 2, self._began + lock._ttl / 3, beat + lock._ttl / 5) for lock in locks]
        if not self._opened:
            return min([self._began + _OPENING, *stuck])
        stuck.append(self._draining_at + _DRAINING)
        for command in self.pending.values():
            if command.sent is not None and not command.watched:
                limit = _WAITING if command.is_wait else _SILENT
                stuck.append(max(command.sent, self._heard) + limit)
        return min(stuck, default=math.inf)
