"""What a client does, whether it blocks or not: it takes locks, keeps their leases, and gives them back."""

from __future__ import annotations

import asyncio
import functools
import inspect
import uuid
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from . import _tracing, errors
from ._call import unary
from ._clock import Time, now, of, seconds
from ._clock import duration as to_duration
from ._held import HeldLock
from ._session import CALL, CLEAN_UP, TRIES, Backoff, Command, Session
from ._settings import Settings
from ._threads import current
from .errors import FencepostError, InvalidRequest, LeaseLost, NotReleased, incomplete
from .v1 import admin_pb2 as admin
from .v1 import election_pb2 as elections
from .v1 import lock_pb2 as pb
from .v1.admin_pb2_grpc import AdminServiceStub
from .v1.election_pb2_grpc import ElectionServiceStub
from .v1.lock_pb2_grpc import LockServiceStub

T = TypeVar("T")
# How long one call may take, in seconds.
_ATTEMPT = 5.0
# How many messages of a watch may be unread before it begins anew.
_UNREAD = 1_000


class Core:
    """A client, whose locks are of one class. `notify` calls a user's callback."""

    def __init__(self, settings: Settings, lock: type[HeldLock], notify: Callable[[Any, Any], None]) -> None:
        self.settings, self.session, self.notify, self._lock = settings, Session(settings), notify, lock
        # What threads and tasks hold by re-entrant requests.
        self._entered: weakref.WeakValueDictionary[Any, HeldLock] = weakref.WeakValueDictionary()
        self._closing: asyncio.Task[None] | None = None
        weakref.finalize(self, self.session.end).atexit = False

    async def acquire(self, request: Any, wait: float, is_reentrant: bool, kind: Any) -> list[Any]:
        """Takes the locks of an AcquireRequest or AcquireAllRequest; a wait of zero is a try. If this ends otherwise, it
        leaves no claim behind."""
        self.session.enter()
        key = (current(), request.name, str(request.mode)) if is_reentrant else None
        if key and (lock := self._entered.get(key)):
            lock.check()
            lock._holds += 1
            return [lock]
        if isinstance(request, pb.AcquireAllRequest) and len(request.locks) == 1:
            request = pb.AcquireRequest(name=request.locks[0].name, ttl=request.ttl if request.HasField("ttl") else None)
        names = [request.name] if isinstance(request, pb.AcquireRequest) else [lock.name for lock in request.locks]
        command = self._command(request, wait, len(names), kind or self._lock)
        with _tracing.acquiring(names, wait):
            try:
                locks: list[Any] = await self.session.send(command).future
            except asyncio.CancelledError:
                await asyncio.wait([self.session.abandon(command)], timeout=CLEAN_UP)
                raise
        if self.session.is_closing:  # It was granted in this moment.
            await asyncio.wait([self.session.abandon(command)], timeout=CLEAN_UP)
            raise errors.closed()
        for lock in locks:
            lock._span = _tracing.current()
        if key:
            self._entered[key], locks[0]._reentry = locks[0], key
        return locks

    def _command(self, request: Any, wait: float, count: int, kind: Any) -> Command:
        asked = type(request)(namespace=self.settings.namespace, owner=self.settings.owner, request_id=uuid.uuid4().hex)
        asked.MergeFrom(request)
        kind_of = {pb.AcquireRequest: "acquire", pb.AcquireAllRequest: "acquire_all"}
        message: Any = {kind_of[type(request)]: {"request": asked, "keep": True}}
        end = now() + (wait + _ATTEMPT if wait else CALL)
        command = Command(pb.SessionCommand(**message), end, now() + wait if wait else None)
        if not wait:
            command.tries_left = max(TRIES, len(self.settings.addresses))

        def granted(answer: Any, sent: float) -> list[HeldLock]:
            single = [answer.lease] if isinstance(answer, pb.AcquireResponse) and answer.HasField("lease") else []
            locks = [kind(self, lease, sent) for lease in single or getattr(answer, "leases", [])]
            if len(locks) != count:
                for lock in locks:
                    self.session.give_back(lock)
                raise incomplete()
            for lock in locks:
                self.session.add(lock, command.id)
            return locks

        command.read = granted
        return command

    async def release(self, lock: HeldLock, at_least: float = 0) -> None:
        """Gives a lock back within 5 s; it stays taken until `at_least` seconds after its grant.

        Raises LeaseLost or NotReleased. A second release does nothing, and neither does one in a child process. It goes
        on if this is cancelled.
        """
        await self.release_all([lock], at_least)

    async def release_all(self, locks: Sequence[HeldLock], at_least: float = 0) -> None:
        """Releases all of them, and then raises the first error."""
        failures = list[FencepostError]()
        for lock, releasing, loss, keep_for in [self._release(lock, at_least) for lock in locks]:
            try:
                if loss:
                    raise loss
                if releasing:
                    await self._confirm(lock, releasing, keep_for)
            except FencepostError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _release(self, lock: HeldLock, at_least: float) -> tuple[HeldLock, Any, LeaseLost | None, float]:
        lock._holds -= 1
        if lock._holds != 0 or self.session.is_forked:
            return lock, None, None, 0
        self._entered.pop(lock._reentry, None)
        self.session.remove(lock)
        loss, keep_for = lock.loss, max(lock._granted + at_least - now(), 0) if at_least else 0
        if loss:
            lock._end(loss)
            if loss.cause != "unrenewed":
                return lock, None, loss, 0
        # The server may count it for longer than this client does.
        limit = CLEAN_UP if loss else min(CLEAN_UP, lock._until - now())
        return lock, self.session.give_back(lock, limit, keep_for), loss, keep_for

    async def _confirm(self, lock: HeldLock, releasing: Any, keep_for: float = 0) -> None:
        end = now() + CLEAN_UP
        try:
            try:
                await releasing
            except InvalidRequest as error:
                if error.reason != "UNSUPPORTED" or not keep_for:
                    raise
                # A store that cannot keep it taken keeps the lease.
                await self.session.start(
                    end - now(), renew=pb.RenewRequest(lease_id=lock.lease_id, ttl=to_duration(keep_for))
                )
        except FencepostError as error:
            if isinstance(error, LeaseLost):
                raise
            raise NotReleased(error.reason, f"{lock.name} may not be released: {error.message}") from error

    async def leave(self, releasing: Awaitable[None], error: BaseException | None) -> None:
        """Releases what a block held. An error of the block comes before one of the release, which is logged then."""
        try:
            await releasing
        except FencepostError as failed:
            if error is None:
                raise
            if not isinstance(failed, LeaseLost):
                _tracing.log("%s", failed, is_warning=True)

    async def extend(self, lock: HeldLock, ttl: Time) -> None:
        """Renews a lease for another TTL."""

        def renewed(answer: Any, sent: float) -> None:
            if not answer.HasField("lease"):
                raise incomplete()
            lock._renewed(sent, of(answer.lease.ttl))
            if loss := lock.loss:  # It came too late.
                lock._end(loss)
                self.session.give_back(lock)
                raise loss

        request = pb.RenewRequest(lease_id=lock.lease_id, ttl=to_duration(seconds(ttl, "ttl")))
        await self.session.request(read=renewed, renew=request)

    async def keep_at_least(self, lock: HeldLock, at_least: float) -> None:
        """Lets a lease live so long after its grant, also if this process dies. Raises InvalidRequest beyond the bounds."""
        if (ttl := lock._ttl) < at_least:
            await self.extend(lock, at_least)
            await self.extend(lock, ttl)

    async def update_metadata(self, lock: HeldLock, metadata: Any) -> None:
        """Replaces what operators see."""
        request = pb.UpdateMetadataRequest(lease_id=lock.lease_id, metadata=metadata)
        await self.session.request(update_metadata=request)

    async def proclaim(self, lock: HeldLock, value: str) -> None:
        """Replaces what observers see of a leader."""
        await self.session.request(proclaim=pb.SessionCommand.Proclaim(lease_id=lock.lease_id, value=value))

    async def get(self, name: str) -> pb.LockState:
        """The queue of a lock."""
        request = pb.GetLockRequest(namespace=self.settings.namespace, name=name)
        answer = await self.session.request(get_lock=request)
        if not answer.HasField("lock"):
            raise incomplete()
        state: pb.LockState = answer.lock
        return state

    async def check_token(self, name: str, token: int) -> bool:
        """Whether a token holds a lock now."""
        request = pb.CheckTokenRequest(namespace=self.settings.namespace, name=name, fencing_token=token)
        return bool((await self.session.request(check_token=request)).held)

    async def force_release(self, name: str, token: int) -> None:
        """Takes a lock from its holder."""
        request = admin.ForceReleaseRequest(namespace=self.settings.namespace, name=name, fencing_token=token)
        await self._call(lambda channel: AdminServiceStub(channel).ForceRelease, request)

    async def locks(self, prefix: str) -> AsyncGenerator[pb.LockSummary, None]:
        """The locks in use, page by page."""
        request = pb.ListLocksRequest(namespace=self.settings.namespace, prefix=prefix)
        while True:
            page = await self._call(lambda channel: LockServiceStub(channel).ListLocks, request)
            for lock in page.locks:
                yield lock
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return

    async def leader(self, election: str) -> elections.Leader | None:
        """The leader of an election."""
        request = elections.GetLeaderRequest(namespace=self.settings.namespace, election=election)
        answer = await self._call(lambda channel: ElectionServiceStub(channel).GetLeader, request)
        return answer.leader if answer.HasField("leader") else None

    async def _call(self, method: Callable[[Any], Any], request: Any) -> Any:
        """A call that sessions do not have, on the connection of the stream, for at most 10 s."""
        end, backoff = now() + CALL, Backoff()
        while True:
            # That does nothing, but its result shows that the stream is open.
            await self.session.request(end - now(), cancel=pb.SessionCommand.Cancel())
            failed: FencepostError = errors.Unavailable("UNAVAILABLE", "the stream has ended")
            if channel := self.session.channel:
                try:
                    token, left = await self.settings.token(), max(min(_ATTEMPT, end - now()), 0.001)
                    return await unary(method(channel), request, token, left)
                except FencepostError as error:
                    failed = error
            pause = backoff.pause(failed)
            if not errors.is_unanswered(failed) or now() + pause >= end:
                raise failed
            await asyncio.sleep(pause)

    def watch(self, name: str) -> AsyncGenerator[pb.LockState | pb.LockChange, None]:
        """The state of a lock and its changes."""
        request = pb.WatchLockRequest(namespace=self.settings.namespace, name=name)

        def item(event: Any) -> Iterable[pb.LockState | pb.LockChange]:
            return [event.message.state if event.message.HasField("state") else event.message.change]

        return self._stream(item, watch_lock=request)

    def observe(self, election: str) -> AsyncGenerator[elections.Leader | None, None]:
        """The leaders of an election. Another server may answer with an older one than the server before."""
        newest = 0
        last: tuple[int, str | None] | None = None

        def changed(event: Any) -> Iterable[elections.Leader | None]:
            nonlocal newest, last
            leader = event.leader if event.HasField("leader") else None
            this = (leader.fencing_token, leader.value) if leader else (newest, None)
            if this[0] < newest or this == last:
                return []
            newest, last = this[0], this
            return [leader and elections.Leader.FromString(leader.SerializeToString())]

        request = pb.SessionCommand.Observe(namespace=self.settings.namespace, election=election)
        return self._stream(changed, observe=request)

    async def _stream(self, items: Callable[[Any], Iterable[T]], **message: Any) -> AsyncGenerator[T, None]:
        """The items of each message of a watch, which begins anew if nobody reads them."""
        while True:
            self.session.enter()
            queue, wake, command = deque[Any](), asyncio.Event(), Command(pb.SessionCommand(**message))

            def watched(event: Any, queue: Any = queue, wake: Any = wake, command: Command = command) -> None:
                queue.append(event)
                wake.set()
                if len(queue) > _UNREAD:
                    queue.clear()
                    self.session.unwatch(command)
                    command.resolve(None)

            command.watched = watched
            command.future.add_done_callback(functools.partial(_set, wake))
            self.session.send(command)
            try:
                while queue or not command.future.done():
                    while queue:
                        for item in items(queue.popleft()):
                            yield item
                    if not command.future.done():
                        wake.clear()
                        await wake.wait()
                command.future.result()
            finally:
                self.session.unwatch(command)

    async def close(self) -> None:
        """Ends the waits, releases all that is held, and ends the stream: within 5 s, also if its caller is cancelled
        meanwhile."""
        session = self.session
        if not session.loop or session.is_forked:
            session.is_closing = True
        elif not self._closing:
            session.bind()
            session.is_closing = True
            self._closing = asyncio.ensure_future(self._close())
            await asyncio.shield(self._closing)
        elif not self._closing.done():
            await asyncio.wait([self._closing])

    async def _close(self) -> None:
        held = self.session.held()
        for lock in held:
            lock._holds = 0
        releasing = list(map(self.session.give_back, held))
        await self.session.close()
        for lock, released in zip(held, releasing, strict=True):
            await self._confirm(lock, released)


def _set(event: asyncio.Event, _: Any) -> None:
    event.set()


class EventLoop:
    """Calls users' callbacks in tasks."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def notify(self, callback: Callable[[Any], Any], argument: Any) -> None:
        """Calls one, which may be a coroutine function."""

        async def call() -> None:
            try:
                if inspect.isawaitable(result := callback(argument)):
                    await result
            except Exception as error:
                _tracing.log("a callback failed", exc_info=error)

        task = asyncio.ensure_future(call())
        self._tasks.add(task)  # The loop itself does not keep its tasks.
        task.add_done_callback(self._tasks.discard)
