"""Answers that lack what they must have."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import pytest
from conftest import until

from fencepost import AsyncClient, Client, FencepostError
from fencepost._clock import duration
from fencepost.v1 import lock_pb2 as pb
from fencepost.v1.lock_pb2_grpc import LockServiceServicer, add_LockServiceServicer_to_server


def granted(name: str) -> pb.Lease:
    return pb.Lease(lease_id=name, name=name, fencing_token=7, ttl=duration(60))


class Lacking(LockServiceServicer):
    """A server whose answers lack leases, and which keeps no lock taken."""

    def __init__(self) -> None:
        self.released: list[str] = []
        self.renewed: list[pb.RenewRequest] = []

    def Session(self, request_iterator: Any, context: Any) -> Any:
        yield pb.SessionResponse(events=[pb.SessionEvent(opened=pb.SessionEvent.Opened(command_limit=1000))])
        for request in request_iterator:
            for command in request.commands:
                result = pb.SessionEvent.CommandResult(id=command.id)
                kind: Any = command.WhichOneof("command")
                answer = getattr(self, kind)(getattr(command, kind))
                if isinstance(answer, pb.SessionEvent.CommandError):
                    result.error.CopyFrom(answer)
                else:
                    getattr(result, kind).SetInParent()
                    getattr(result, kind).MergeFrom(answer)
                yield pb.SessionResponse(events=[pb.SessionEvent(result=result)])

    def open(self, command: Any) -> Any:
        return pb.SessionEvent.OpenAccepted()

    def acquire(self, command: Any) -> Any:
        return pb.AcquireResponse(lease=granted(command.request.name) if command.request.name == "whole" else None)

    def acquire_all(self, command: Any) -> Any:
        return pb.AcquireAllResponse(leases=[granted(lock.name) for lock in command.request.locks[1:]])

    def renew(self, command: Any) -> Any:
        self.renewed.append(command)
        return pb.RenewResponse(lease=granted(command.lease_id) if command.ttl.seconds == 3600 else None)

    def get_lock(self, command: Any) -> Any:
        return pb.GetLockResponse()

    def release(self, command: Any) -> Any:
        if command.HasField("keep_for"):
            return pb.SessionEvent.CommandError(code=9, reason="UNSUPPORTED", message="it keeps nothing")
        self.released.append(command.lease_id)
        return pb.ReleaseResponse()


@pytest.fixture
def lacking() -> Iterator[tuple[Lacking, str]]:
    server, service = grpc.server(ThreadPoolExecutor()), Lacking()  # type: ignore[abstract]
    add_LockServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, f"127.0.0.1:{port}"
    server.stop(None).wait()


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
    until(lambda: service.released == RELEASED.get(what, []))
    client.close()


@pytest.mark.parametrize("what", TASKS)
def test_so_it_is_with_asyncio(lacking: tuple[Lacking, str], what: str) -> None:
    service, address = lacking

    async def main() -> None:
        async with AsyncClient(address) as client:
            with pytest.raises(FencepostError) as failed:
                await TASKS[what](client)
            assert failed.value.reason == "INCOMPLETE"
            while service.released != RELEASED.get(what, []):
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_store_that_keeps_nothing_taken_keeps_the_lease(lacking: tuple[Lacking, str]) -> None:
    service, address = lacking
    with Client(address) as client:
        client.once("whole", at_least=30)(lambda: None)()
        # It was renewed for what is left, and is renewed no more.
        assert [29 <= one.ttl.seconds + one.ttl.nanos / 1e9 <= 30 for one in service.renewed] == [True]


def test_a_job_whose_lock_may_not_stay_held_does_not_begin(lacking: tuple[Lacking, str]) -> None:
    service, address = lacking
    ran = list[int]()
    with Client(address) as client, pytest.raises(FencepostError) as failed:
        client.once("whole", at_least=7200)(lambda: ran.append(1))()
    assert failed.value.reason == "INCOMPLETE" and not ran
    until(lambda: service.released == ["whole"])


class Slow(LockServiceServicer):
    """A server whose store takes 6 s for each lock."""

    def __init__(self) -> None:
        self.streams = 0

    def Session(self, request_iterator: Any, context: Any) -> Any:
        self.streams += 1
        events = queue.SimpleQueue[pb.SessionEvent]()
        events.put(pb.SessionEvent(opened=pb.SessionEvent.Opened(command_limit=1000)))

        def read() -> None:
            with suppress(Exception):  # The end of the stream.
                answer()

        def answer() -> None:
            for command in (command for request in request_iterator for command in request.commands):
                result = pb.SessionEvent.CommandResult(id=command.id)
                if command.HasField("get_lock"):
                    result.get_lock.lock.name = "slow"
                    threading.Timer(6, events.put, [pb.SessionEvent(result=result)]).start()
                else:
                    result.cancel.SetInParent()
                    events.put(pb.SessionEvent(result=result))

        threading.Thread(target=read, daemon=True).start()
        while context.is_active():
            with suppress(queue.Empty):
                yield pb.SessionResponse(events=[events.get(timeout=0.1)])


def test_a_server_whose_store_is_slow_keeps_its_stream() -> None:
    server, service = grpc.server(ThreadPoolExecutor()), Slow()  # type: ignore[abstract]
    add_LockServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with Client(f"127.0.0.1:{port}") as client:
        assert client.get("a").name == "slow" and service.streams == 1
    server.stop(None).wait()
