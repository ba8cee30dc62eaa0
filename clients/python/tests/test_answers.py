"""Answers that lack what they must have."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from conftest import until

from fencepost import AsyncClient, Client, FencepostError, NotReleased, _calls
from fencepost._clock import duration, now
from fencepost.v1 import lock_pb2 as pb
from fencepost.v1.lock_pb2_grpc import LockServiceServicer, add_LockServiceServicer_to_server


def granted(name: str) -> pb.Lease:
    return pb.Lease(lease_id=name, name=name, fencing_token=7, ttl=duration(60))


class Lacking(LockServiceServicer):
    def __init__(self) -> None:
        self.released: list[str] = []
        # The calls for the lock "twice": their leases, and whether they have ended.
        self.waits: list[tuple[queue.SimpleQueue[str], threading.Event]] = []

    def Acquire(self, request: Any, context: Any) -> pb.AcquireResponse:
        if request.name == "twice":
            lease, ended = queue.SimpleQueue[str](), threading.Event()
            context.add_callback(ended.set)
            self.waits.append((lease, ended))
            return pb.AcquireResponse(lease=granted(lease.get()))
        return pb.AcquireResponse(lease=granted(request.name) if request.name == "whole" else None)

    def AcquireAll(self, request: Any, context: Any) -> pb.AcquireAllResponse:
        return pb.AcquireAllResponse(leases=[granted(lock.name) for lock in request.locks[1:]])

    def Renew(self, request: Any, context: Any) -> pb.RenewResponse:
        return pb.RenewResponse()

    def GetLock(self, request: Any, context: Any) -> pb.GetLockResponse:
        return pb.GetLockResponse()

    def Release(self, request: Any, context: Any) -> pb.ReleaseResponse:
        self.released.append(request.lease_id)
        return pb.ReleaseResponse()


@pytest.fixture
def lacking() -> Iterator[tuple[Lacking, str]]:
    server, service = grpc.server(ThreadPoolExecutor()), Lacking()  # type: ignore[abstract]
    add_LockServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_calls, "HANDOVER", 0.3)


def grant_twice(service: Lacking) -> None:
    until(lambda: len(service.waits) > 2)
    service.waits[0][0].put("first")


def after_grants(service: Lacking) -> None:
    """As of a store that remembers no requests: each call is a wait of its own."""
    service.waits[1][0].put("second")
    until(lambda: service.released == ["second"])
    assert service.waits[2][1].wait(10), "a call goes on whose wait is over"
    for lease, _ in service.waits:
        lease.put("late")


def test_a_wait_that_is_granted_twice_keeps_the_first_grant(lacking: tuple[Lacking, str], hand_over: None) -> None:
    service, address = lacking
    with Client(address) as client, ThreadPoolExecutor() as pool:
        waiting, begin = pool.submit(client.lock("twice", wait=60).acquire), now()
        grant_twice(service)
        lock = waiting.result(5)
        assert lock.lease_id == "first" and lock._granted < begin + 0.3
        after_grants(service)


def test_so_does_one_with_asyncio(lacking: tuple[Lacking, str], hand_over: None) -> None:
    service, address = lacking

    async def main() -> None:
        async with AsyncClient(address) as client:
            waiting = asyncio.ensure_future(client.lock("twice", wait=60).acquire())
            await asyncio.to_thread(grant_twice, service)
            assert (await waiting).lease_id == "first"
            await asyncio.to_thread(after_grants, service)

    asyncio.run(main())


THREADS: dict[str, Callable[[Client], Any]] = {
    "one": lambda client: client.lock("a").acquire(),
    "one that waits": lambda client: client.lock("a", wait=60).acquire(),
    "some": lambda client: client.lock_all(["a", "b", "c"]).acquire(),
    "an extension": lambda client: client.lock("whole").acquire().extend(90),
    "the queue": lambda client: client.get("a"),
}
TASKS: dict[str, Callable[[AsyncClient], Coroutine[Any, Any, Any]]] = {
    "one": lambda client: client.lock("a").acquire(),
    "some": lambda client: client.lock_all(["a", "b", "c"], wait=60).acquire(),
}
RELEASED = {"some": ["b", "c"]}


@pytest.mark.parametrize("what", THREADS)
def test_an_answer_that_lacks_a_lease_is_an_error_and_its_grants_are_released(
    lacking: tuple[Lacking, str], what: str
) -> None:
    service, address = lacking
    client = Client(address)
    with pytest.raises(FencepostError) as failed:
        THREADS[what](client)
    assert (type(failed.value), failed.value.reason) == (FencepostError, "INCOMPLETE")
    assert service.released == RELEASED.get(what, [])
    client.close()


@pytest.mark.parametrize("what", TASKS)
def test_so_it_is_with_asyncio(lacking: tuple[Lacking, str], what: str) -> None:
    service, address = lacking

    async def main() -> None:
        async with AsyncClient(address) as client:
            with pytest.raises(FencepostError) as failed:
                await TASKS[what](client)
            assert failed.value.reason == "INCOMPLETE"

    asyncio.run(main())
    assert service.released == RELEASED.get(what, [])


def test_a_job_whose_lock_may_not_stay_held_says_so(lacking: tuple[Lacking, str]) -> None:
    with Client(lacking[1]) as client:
        with pytest.raises(NotReleased) as failed:
            client.once("whole", at_least=3600)(lambda: None)()
        assert failed.value.reason == "INCOMPLETE"
