"""A lock of Fencepost that is kept while a block runs. Copy this file.

    with Locks("127.0.0.1:50051", owner="me").lock("reports", wait=30) as lock:
        for part in parts:
            lock.check()  # raises LeaseLost
            save(part, lock.fencing_token)

A lease counts from before its request was sent, on this machine's clock, so that its loss is reported before another
client can hold the lock. A process can be paused between a check and a write: the resource must compare the tokens.
"""

import queue
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status
from fencepost.v1 import lock_pb2 as pb
from fencepost.v1.lock_pb2_grpc import LockServiceStub

RETRY = 0.2
OPTIONS = [("grpc.keepalive_time_ms", 5000), ("grpc.keepalive_timeout_ms", 5000), ("grpc.max_reconnect_backoff_ms", 1000)]


class FencepostError(Exception):
    # The reason is that of the server's ErrorInfo, or the gRPC status if there is none.
    def __init__(self, reason: str, message: str | None) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


class LockHeld(FencepostError): ...
class WaitTimeout(FencepostError): ...
class LeaseLost(FencepostError): ...
class Unavailable(FencepostError): ...  # A repetition may succeed.


ERRORS = {"LOCK_HELD": LockHeld, "WAIT_TIMEOUT": WaitTimeout, "LEASE_LOST": LeaseLost}
RETRYABLE = "UNAVAILABLE RESOURCE_EXHAUSTED DEADLINE_EXCEEDED CANCELLED UNKNOWN".split()


def typed(error: Any) -> FencepostError:
    status, info, code = rpc_status.from_call(error), ErrorInfo(), error.code().name
    known = status and any(detail.Unpack(info) and info.domain == "fencepost" for detail in status.details)
    kind = Unavailable if code in RETRYABLE else ERRORS.get(info.reason, FencepostError)
    return kind(info.reason if known else code, error.details())


def now() -> float:  # The clock that also counts while the machine is suspended.
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Lock:
    def __init__(self, lease: pb.Lease, until: float) -> None:
        self.lease_id, self.fencing_token, self.until = lease.lease_id, lease.fencing_token, until
        self.loss: LeaseLost | None = None
        self._ended = threading.Event()

    def wait_lost(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds for the loss of the lease, and returns whether it is or may be lost."""
        end = now() + timeout
        while not self._ended.wait(max(0, min(self.until, end) - now())):
            if self.until <= now():
                self.lose(LeaseLost("LEASE_LOST", "no renewal was confirmed in time"))
            elif end <= now():
                return False
        return True

    def check(self) -> None:
        """Raises LeaseLost if the lease is or may be lost."""
        if self.wait_lost(0) and self.loss:
            raise self.loss

    def lose(self, loss: LeaseLost) -> None:
        self.loss = self.loss or loss
        self._ended.set()


class Locks:
    """The locks of a process: one channel, and on it one KeepAlive stream for up to 1000 leases."""

    def __init__(self, address: str, owner: str, namespace: str = "default") -> None:
        self.stub = LockServiceStub(grpc.insecure_channel(address, OPTIONS))
        self.namespace, self.owner = namespace, owner
        self._held: dict[str, Lock] = {}
        self._beats = queue.SimpleQueue[bool]()
        threading.Thread(target=self._keep, daemon=True).start()

    @contextmanager
    def lock(self, name: str, wait: float = 0, **fields: Any) -> Iterator[Lock]:
        """Holds a lock while the block runs. `fields` are others of AcquireRequest: ttl, mode, metadata."""
        request = pb.AcquireRequest(namespace=self.namespace, name=name, owner=self.owner, **fields)
        lock = self._acquire(request, now() + wait)
        self._held[lock.lease_id] = lock
        self._beats.put(True)
        try:
            yield lock
        finally:
            del self._held[lock.lease_id]
            if not lock.loss:
                try:  # Without an answer, the lease ends with its TTL.
                    self.stub.Release(pb.ReleaseRequest(lease_id=lock.lease_id), timeout=5, wait_for_ready=True)
                except grpc.RpcError as error:
                    lock.loss = lost if isinstance(lost := typed(error), LeaseLost) else None
        if lock.loss:
            raise lock.loss

    def _acquire(self, request: pb.AcquireRequest, end: float) -> Lock:
        request.request_id = uuid.uuid4().hex  # By it, a repeated call finds the claim of the call before.
        while True:
            sent = now()
            request.wait.FromTimedelta(timedelta(seconds=max(end - sent, 0)))
            try:
                lease = self.stub.Acquire(request, timeout=max(end - sent, 0) + 5).lease
                return Lock(lease, sent + (lease.waited.ToNanoseconds() + lease.ttl.ToNanoseconds()) / 1e9)
            except grpc.RpcError as error:
                if not isinstance(failed := typed(error), Unavailable) or now() + RETRY >= end:
                    raise failed from error
            time.sleep(RETRY)

    def _keep(self) -> None:
        while True:  # Each stream begins with an ask; its answer names all leases again.
            self._beats = queue.SimpleQueue[bool]()
            with suppress(grpc.RpcError):
                self._answer(self._beats)
            self._beats.put(False)
            time.sleep(RETRY)

    def _answer(self, beats: "queue.SimpleQueue[bool]") -> None:
        sent: dict[int, tuple[float, list[Lock]]] = {}
        def requests() -> Iterator[pb.KeepAliveRequest]:
            for number, _ in enumerate(iter(beats.get, False)):
                sent[number] = now(), [lock for lock in list(self._held.values()) if not lock.loss]
                yield pb.KeepAliveRequest(beat=number, lease_ids=[lock.lease_id for lock in sent[number][1]])

        for event in self.stub.KeepAlive(requests()):
            if event.HasField("ask"):
                beats.put(True)
            elif event.HasField("kept"):
                at, locks = sent.pop(event.kept.beat)
                for lock, ttl in zip(locks, event.kept.ttls):
                    lock.until = max(lock.until, at + ttl.ToNanoseconds() / 1e9)
            elif event.lost.reason == "LEASE_LOST" and (lost := self._held.get(event.lost.lease_id)):
                lost.lose(LeaseLost("LEASE_LOST", event.lost.cause))
