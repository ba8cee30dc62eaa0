"""Keeps the leases of held locks: one thread, or one task, for each KeepAlive stream, of which one takes 1,000 leases.

The server asks, the client answers with the ids of its leases, and the server renews them. A stream and its thread end
when no lock is held any more.
"""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from typing import Any

import grpc

from ._calls import Backoff, Calls
from ._clock import now, of
from ._connections import Connection
from ._held import HeldLock
from ._threads import log
from .errors import FencepostError, Unavailable, lost
from .v1 import lock_pb2 as pb

# How many leases one stream keeps, and how many bytes their ids have; a server takes beats of 64 KiB.
LEASES, ID_BYTES = 1_000, 48 << 10
# For how many seconds a stream goes on without a lease, because the next one may come soon.
LINGER = 1.0
# It looks at the clock at least so often, because timers stand still while the machine is suspended.
LONGEST_SLEEP = 5.0


class Keeper:
    """The streams of a client."""

    def __init__(self, calls: Calls) -> None:
        self.calls, self.mutex, self.linger = calls, threading.Lock(), LINGER
        self.streams: list[Stream] = []

    def add(self, lock: HeldLock) -> None:
        """Keeps a lease until it is removed or lost."""
        with self.mutex:
            stream = next((stream for stream in self.streams if stream.has_room(lock)), None)
            if not stream:
                stream = Stream(self)
                self.streams.append(stream)
                self.calls.runtime.spawn(stream.run())
            stream.locks[lock.lease_id] = lock
            stream.id_bytes += _size(lock)
            stream.beat_at = min(stream.beat_at, lock._beat_by)
        if lock._beat_by < stream.wakes_at:
            stream.inbox.put(())

    def remove(self, lock: HeldLock) -> None:
        """Renews a lease no more."""
        with self.mutex:
            for stream in self.streams:
                if stream.locks.pop(lock.lease_id, None):
                    stream.id_bytes -= _size(lock)

    def held(self) -> list[HeldLock]:
        """All that are kept."""
        with self.mutex:
            return [lock for stream in self.streams for lock in stream.locks.values()]

    def stop(self) -> None:
        """Ends the streams without leases at once."""
        self.linger = -1.0
        for stream in list(self.streams):
            stream.inbox.put(())


class Stream:
    """A stream, and the locks whose leases it keeps."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper, self._calls, self._runtime = keeper, keeper.calls, keeper.calls.runtime
        self.locks: dict[str, HeldLock] = {}
        self.id_bytes = 0
        # When the next beat is due, and until when the thread sleeps if nothing arrives in its inbox.
        self.beat_at = self.wakes_at = math.inf
        self.inbox = self._runtime.Box()
        self._connection: Connection | None = None
        self._call: Any = None
        # Those without an answer, by their numbers.
        self._beats: dict[int, tuple[float, list[HeldLock]]] = {}
        self._last = 0
        self._opened = self._open_at = self._used = now()
        self._backoff = Backoff()

    def has_room(self, lock: HeldLock) -> bool:
        """Whether it can keep one more lease."""
        return len(self.locks) < LEASES and self.id_bytes + _size(lock) <= ID_BYTES

    async def run(self) -> None:
        """Keeps the leases until there are none."""
        try:
            while (locks := self._kept()) is not None:
                try:
                    await self._step(locks)
                except Exception as error:  # Such as of a user's log handler, or for an answer that cannot be read.
                    self._close()
                    with suppress(Exception):
                        log.exception("the renewals failed, and go on over a new stream")
                    pause = self._backoff.pause(Unavailable("UNAVAILABLE", str(error)))
                    await self._runtime.sleep(pause)
        finally:
            self._close()

    async def _step(self, locks: list[HeldLock]) -> None:
        for lock in locks:
            if lock._until <= now():
                lock._end(lost("unrenewed"))
            if lock.loss:
                self._keeper.remove(lock)
        self.wakes_at = await self._renew([lock for lock in locks if not lock.loss])
        if event := await self.inbox.get(self.wakes_at - now()):
            await self._receive(*event)

    def _kept(self) -> list[HeldLock] | None:
        """The locks, or None at the end. Each that is added from here on wakes the thread."""
        with self._keeper.mutex:
            self.wakes_at = math.inf
            if self.locks:
                self._used = now()
                return list(self.locks.values())
            self.beat_at = math.inf
            if now() - self._used <= self._keeper.linger:
                return []
            self._keeper.streams.remove(self)
            return None

    async def _renew(self, locks: list[HeldLock]) -> float:
        """Does what is due, and returns when something is due again."""
        if not locks:
            # So soon that a lock which is taken now need not wake it.
            return now() + max(self._keeper.linger / 4, 0)
        # When a lease had no confirmation for half of its TTL, and this stream had some time to bring one.
        stuck_at = min(max(lock._confirmed + lock._ttl / 2, self._opened + lock._ttl / 3) for lock in locks)
        if self._call and self._connection and stuck_at <= now():
            self._close()
            await self._calls.connections.replace(self._connection, "no renewal for half of a TTL")
        if self._call and self.beat_at <= now():
            self._beat()
        elif not self._call and max(self.beat_at, self._open_at) <= now():
            self._open()
        due = min(self.beat_at, stuck_at) if self._call else max(self.beat_at, self._open_at)
        return min(due, now() + LONGEST_SLEEP, *(lock._until for lock in locks))

    def _open(self) -> None:
        self._opened, self._beats = now(), {}
        try:
            self._connection, self._requests = self._calls.connections.current(), self._runtime.Box()
            requests: Any = self._requests.requests()
            metadata = self._calls.settings.metadata()
            self._call = self._connection.locks.KeepAlive(requests, metadata=metadata)
            self._runtime.spawn(self._read(self._call))
            self._beat()
        except Exception as error:  # Such as a file with certificates that is missing for a moment.
            self._broken(error)

    async def _read(self, call: Any) -> None:
        ended: Exception = Unavailable("UNAVAILABLE", "the stream has ended")
        try:
            async for event in self._runtime.messages(call):
                self.inbox.put((call, event))
        except grpc.RpcError as error:
            ended = error
        finally:
            self.inbox.put((call, ended))

    def _beat(self) -> None:
        with self._keeper.mutex:
            locks = list(self.locks.values())
            # A server asks after a third of the TTL. One that is late is not waited for.
            self.beat_at = now() + min([lock._ttl for lock in locks], default=60) * 3 / 8
        self._last += 1
        self._beats[self._last] = now(), locks
        lease_ids = [lock.lease_id for lock in locks]
        self._requests.put(pb.KeepAliveRequest(beat=self._last, lease_ids=lease_ids))

    async def _receive(self, call: Any, event: Any) -> None:
        if call is not self._call or not self._connection:
            return
        if isinstance(event, Exception):
            self._broken(await self._calls.failed(self._connection, event))
        elif event.HasField("ask"):
            # It does not know of a beat that is on its way.
            self.beat_at = self.beat_at if self._beats else now()
        elif event.HasField("kept"):
            sent, locks = self._beats.pop(event.kept.beat)
            for lock, ttl in zip(locks, event.kept.ttls, strict=True):
                lock._renewed(sent, of(ttl))
            self._backoff = Backoff()
        elif event.lost.reason == "LEASE_LOST" and (lost_lock := self.locks.get(event.lost.lease_id)):
            lost_lock._end(lost(event.lost.cause))

    def _broken(self, error: Exception) -> None:
        self._close()
        known = error if isinstance(error, FencepostError) else Unavailable("UNAVAILABLE", str(error))
        self._open_at = now() + self._backoff.pause(known)
        log.info("the stream of renewals broke, and is opened again: %s", known)

    def _close(self) -> None:
        """Ends the stream. The leases stay held for their TTL."""
        call, self._call, self.beat_at = self._call, None, 0.0
        if call:
            self._requests.put(None)
            call.cancel()


def _size(lock: HeldLock) -> int:
    # A tag and a length come before each id.
    return len(lock.lease_id) + 4
