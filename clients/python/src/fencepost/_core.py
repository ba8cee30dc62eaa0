"""What a client does, whether it blocks or not: it takes locks, keeps their leases, and gives them back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from ._calls import CLEAN_UP, Calls
from ._clock import Time, duration, now, of, seconds
from ._connections import Connections
from ._held import HeldLock
from ._keeper import Keeper
from ._runtime import Runtime
from ._settings import Settings
from ._threads import log
from .errors import FencepostError, LeaseLost, NotReleased, incomplete, lost
from .v1 import election_pb2 as elections
from .v1 import lock_pb2 as pb

AnyLock = TypeVar("AnyLock", bound=HeldLock)


class Core(Generic[AnyLock]):
    """The parts of a client, whose locks are of one class."""

    def __init__(self, settings: Settings, runtime: Runtime, lock: type[AnyLock]) -> None:
        self.settings, self.runtime, self._lock = settings, runtime, lock
        self.connections = Connections(settings, runtime)
        self.calls = Calls(self.connections, runtime)
        self.keeper = Keeper(self.calls)
        # What threads and tasks hold by re-entrant requests.
        self._entered: dict[Any, AnyLock] = {}

    async def acquire(self, request: Any, wait: float, is_reentrant: bool, kind: Any) -> list[AnyLock]:
        """Takes the locks of an AcquireRequest or AcquireAllRequest, and keeps their leases."""
        key = (self.runtime.current(), request.name, str(request.mode)) if is_reentrant else None
        if lock := self._entered.get(key):
            lock.check()
            lock._holds += 1
            return [lock]

        def keep(leases: list[pb.Lease], sent: float) -> list[AnyLock]:
            locks = [(kind or self._lock)(self, lease, sent) for lease in leases]
            for lock in locks:
                self.keeper.add(lock)
            return locks

        locks = await self.calls.acquire(request, wait, keep)
        if key:
            self._entered[key], locks[0]._reentry = locks[0], key
        return locks

    async def release(self, lock: HeldLock, at_least: float = 0, limit: float = CLEAN_UP) -> None:
        """Gives a lock back within `limit` seconds, or leaves it to its TTL until `at_least` seconds after its grant.

        Raises LeaseLost or NotReleased. A second release does nothing, and neither does one in a child process.
        """
        lock._holds -= 1
        if lock._holds != 0 or self.connections.is_forked:
            return
        self._entered.pop(lock._reentry, None)
        self.keeper.remove(lock)
        loss = lock.loss
        lock._end(loss or lost("released"), is_released=not loss)
        if loss:
            if loss.cause == "unrenewed" and lock._granted + at_least <= now():  # The server may count it for longer.
                self.runtime.spawn(_quietly(self._release(lock, CLEAN_UP)))
            raise loss
        try:
            await self._give_back(lock, at_least, limit)
        except FencepostError as error:
            if isinstance(error, LeaseLost):
                raise
            raise NotReleased(error.reason, f"{lock.name} may not be released: {error.message}") from error
        except BaseException:  # It is cancelled or interrupted.
            self.runtime.spawn(_quietly(self._give_back(lock, at_least, CLEAN_UP)))
            raise

    async def _give_back(self, lock: HeldLock, at_least: float, limit: float) -> None:
        left = lock._granted + at_least - now()
        if left <= 0:
            await self._release(lock, min(limit, lock._until - now()))
        elif left > lock._until - now():
            await self.extend(lock, left)
        else:
            self.runtime.spawn(_quietly(self._release_later(lock, left)))

    async def _release(self, lock: HeldLock, limit: float) -> None:
        await self.calls.call(lambda at: at.locks.Release, pb.ReleaseRequest(lease_id=lock.lease_id), limit)

    async def _release_later(self, lock: HeldLock, delay: float) -> None:
        await self.runtime.sleep(delay)
        await self._release(lock, CLEAN_UP)

    async def release_all(self, locks: Sequence[HeldLock], at_least: float = 0) -> None:
        """Tries to release all of them within 5 s, and then raises the first error. If it is cancelled or interrupted, it
        goes on in the background."""
        failures, end = [], now() + CLEAN_UP
        for index, lock in enumerate(locks):
            try:
                await self.release(lock, at_least, end - now())
            except FencepostError as error:
                failures.append(error)
            except BaseException:
                self.runtime.spawn(_quietly(self.release_all(locks[index + 1 :], at_least)))
                raise
        if failures:
            raise failures[0]

    async def leave(self, locks: Sequence[HeldLock], at_least: float, error: BaseException | None) -> None:
        """Releases what a block held. An error of the block comes before one of the release, which is logged then."""
        try:
            await self.release_all(locks, at_least)
        except FencepostError as failed:
            if error is None:
                raise
            if not isinstance(failed, LeaseLost):
                log.warning("%s", failed)

    async def extend(self, lock: HeldLock, ttl: Time) -> None:
        """Renews a lease for another TTL."""
        sent, request = now(), pb.RenewRequest(lease_id=lock.lease_id, ttl=duration(seconds(ttl, "ttl")))
        answer = await self.calls.call(lambda at: at.locks.Renew, request)
        if not answer.HasField("lease"):
            raise incomplete()
        lock._renewed(sent, of(answer.lease.ttl))

    async def update_metadata(self, lock: HeldLock, metadata: Any) -> None:
        """Replaces what operators see."""
        request = pb.UpdateMetadataRequest(lease_id=lock.lease_id, metadata=metadata)
        await self.calls.call(lambda at: at.locks.UpdateMetadata, request)

    async def get(self, name: str) -> pb.LockState:
        """The queue of a lock."""
        request = pb.GetLockRequest(namespace=self.settings.namespace, name=name)
        answer = await self.calls.call(lambda at: at.locks.GetLock, request)
        if not answer.HasField("lock"):
            raise incomplete()
        return answer.lock

    async def check_token(self, name: str, token: int) -> bool:
        """Whether a token holds a lock now."""
        request = pb.CheckTokenRequest(namespace=self.settings.namespace, name=name, fencing_token=token)
        return (await self.calls.call(lambda at: at.locks.CheckToken, request)).held

    def watch(self, name: str) -> AsyncGenerator[pb.LockState | pb.LockChange, None]:
        """The state of a lock and its changes."""
        request = pb.WatchLockRequest(namespace=self.settings.namespace, name=name)

        def item(event: pb.WatchLockResponse) -> list[pb.LockState | pb.LockChange]:
            return [event.state if event.HasField("state") else event.change]

        return self.calls.stream(lambda at: at.locks.WatchLock, request, item)

    async def proclaim(self, lock: HeldLock, value: str) -> None:
        """Replaces what observers see of a leader."""
        request = elections.ProclaimRequest(lease_id=lock.lease_id, value=value)
        await self.calls.call(lambda at: at.elections.Proclaim, request)

    async def leader(self, election: str) -> elections.Leader | None:
        """The leader of an election."""
        request = elections.GetLeaderRequest(namespace=self.settings.namespace, election=election)
        answer = await self.calls.call(lambda at: at.elections.GetLeader, request)
        return answer.leader if answer.HasField("leader") else None

    def observe(self, election: str) -> AsyncGenerator[elections.Leader | None, None]:
        """The leaders of an election. Another server may answer with an older one than the server before."""
        newest = 0
        last: tuple[int, str | None] | None = None

        def changed(event: elections.ObserveResponse) -> list[elections.Leader | None]:
            nonlocal newest, last
            leader = event.leader if event.HasField("leader") else None
            this = (leader.fencing_token, leader.value) if leader else (newest, None)
            if this[0] < newest or this == last:
                return []
            newest, last = this[0], this
            return [leader]

        request = elections.ObserveRequest(namespace=self.settings.namespace, election=election)
        return self.calls.stream(lambda at: at.elections.Observe, request, changed)

    async def close(self) -> None:
        """Ends the waits, releases all that is held, and closes the connections: within 5 s for each, also if its caller is
        cancelled meanwhile."""
        if not self.connections.is_forked:
            await self.runtime.finish(self._close(), None)

    async def _close(self) -> None:
        await self.connections.end_waits()
        await self._until(lambda: not self.calls.acquiring)
        held = [lock for lock in self.keeper.held() if not lock.loss]
        for lock in held:
            lock._holds = 1
        try:
            await self.release_all(held)
        finally:
            self.keeper.stop()
            await self._until(lambda: not self.keeper.streams)
            await self.connections.close()

    async def _until(self, is_so: Any) -> None:
        end = now() + CLEAN_UP
        while not is_so() and now() < end:
            await self.runtime.sleep(0.005)


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    """Work in the background, whose errors nobody waits for."""
    with suppress(FencepostError):
        await work
