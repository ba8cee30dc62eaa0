"""How locks, waits and renewals end when something else goes wrong."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from conftest import Proxy, force, until

import fencepost
from fencepost import FOREVER, AsyncClient, Client, LeaseLost, errors
from fencepost._clock import now
from fencepost._requests import message
from fencepost.testing import Server
from fencepost.v1 import lock_pb2 as pb


def test_a_block_that_another_thread_leaves_is_released(client: Client, name: str) -> None:
    request = client.read(name, ttl=300)
    with ThreadPoolExecutor(max_workers=1) as pool:
        theirs = pool.submit(request.__enter__).result()
        mine = request.__enter__()
        pool.submit(request.__exit__, None, None, None).result()
        assert mine.is_held and not theirs.is_held, "a thread leaves its own block first"
        pool.submit(request.__exit__, None, None, None).result()
    assert client.get(name).holder_count == 0


def test_a_block_that_another_task_leaves_is_released(running: Server, name: str) -> None:
    async def main() -> None:
        async with AsyncClient(running.address) as client:
            request = client.lock(name, ttl=300)
            await asyncio.create_task(request.__aenter__())
            await asyncio.create_task(request.__aexit__(None, None, None))
            assert (await client.get(name)).holder_count == 0

    asyncio.run(main())


class Broken(logging.Handler):
    """A handler that fails, as a span of a tracer may too."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("the log failed")

    def add_event(self, *event: Any) -> None:
        raise RuntimeError("the tracer failed")


@pytest.fixture
def broken() -> Iterator[Broken]:
    handler, logger = Broken(), logging.getLogger("fencepost")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


@pytest.mark.parametrize("is_traced", [False, True])
def test_a_log_that_fails_hides_no_loss(client: Client, running: Server, name: str, broken: Broken, is_traced: bool) -> None:
    causes: list[str] = []
    other, lock = client.lock(f"{name}-2", ttl=1).acquire(), client.lock(name).acquire()
    lock._span = broken if is_traced else None
    if is_traced:
        logging.getLogger("fencepost").removeHandler(broken)
    lock.on_lost(lambda loss: causes.append(loss.cause))
    time.sleep(0.7)  # Until its stream has named it.
    force(running, lock)
    until(lambda: causes == ["forced"])
    assert not other.wait_lost(2)


def test_a_log_that_fails_ends_no_renewals(proxy: Proxy, name: str, broken: Broken) -> None:
    with Client(proxy.address) as client, client.lock(name, ttl=2) as lock:
        time.sleep(0.7)  # Until its stream is open.
        proxy.cut()
        assert not lock.wait_lost(4)


def test_an_answer_that_cannot_be_read_ends_no_renewals(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kept, read = client._core.session._kept, list[Any]()

    def fail(answer: Any) -> None:
        read.append(answer)
        if len(read) == 1:
            raise ValueError("mangled")
        kept(answer)

    monkeypatch.setattr(client._core.session, "_kept", fail)
    with client.lock(name, ttl=2) as lock:
        assert not lock.wait_lost(4)
    assert "mangled" in caplog.text


def test_a_long_hold_keeps_no_answered_commands(client: Client, name: str) -> None:
    with client.lock(name, ttl=1):
        session = client._core.session
        until(lambda: next(session._ids) > 8)
        assert len(session.pending) < 4


def test_a_grant_that_crosses_the_close_is_undone(client: Client, proxy: Proxy, name: str) -> None:
    closing, lock = Client(proxy.address), client.lock(name).acquire()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(closing.lock(name, wait=FOREVER, ttl=300).acquire)
        until(lambda: client.get(name).waiter_count == 1)
        proxy.silence()
        lock.release()
        until(lambda: client.get(name).holder_count == 1)
        closing.close()
        with pytest.raises(fencepost.ClientClosed):
            waiting.result(5)
    assert client.get(name).holder_count == 0


def test_a_cancelled_end_of_once_keeps_the_lock_held(running: Server, name: str) -> None:
    async def main() -> None:
        async with AsyncClient(running.address) as client:
            job = client.once(name, at_least=60, ttl=5)(lambda: asyncio.sleep(60))
            running_job = asyncio.ensure_future(job())
            while not (await client.get(name)).holder_count:
                await asyncio.sleep(0.01)
            running_job.cancel()
            await asyncio.sleep(0)
            running_job.cancel()  # In the midst of the release.
            with pytest.raises(asyncio.CancelledError):
                await running_job
            while (holder := (await client.get(name)).holders[0]).holds:
                await asyncio.sleep(0.01)
            assert holder.remaining_ttl.seconds > 50

    asyncio.run(main())


def test_a_lease_that_was_not_renewed_is_released_all_the_same(client: Client, name: str) -> None:
    lock = client.lock(name, ttl=300).acquire()
    lock._until = now()  # As if its renewals were not confirmed.
    with pytest.raises(LeaseLost, match="unrenewed"):
        lock.release()
    until(lambda: client.get(name).holder_count == 0)
    with pytest.raises(LeaseLost), client._ask(message(name, 300), None, at_least=60) as lock:
        lock._until = now()
    time.sleep(0.3)
    assert client.get(name).holder_count == 1


def test_a_new_thread_does_not_reenter_the_lock_of_one_that_has_ended(client: Client, name: str) -> None:
    request = client.lock(name, reentrant=True)
    ended: list[Any] = []

    def acquire() -> None:
        try:
            ended.append(request.acquire())
        except fencepost.LockHeld as error:
            ended.append(error)

    for _ in range(2):
        thread = threading.Thread(target=acquire)  # The system gives the second one the number of the first.
        thread.start()
        thread.join()
    assert isinstance(ended[1], fencepost.LockHeld)
    ended[0].release()


def test_details_that_cannot_be_read_leave_the_reason() -> None:
    class Failed:
        def code(self) -> Any:
            return grpc.StatusCode.ABORTED

        def details(self) -> str:
            return "it is held"

        def trailing_metadata(self) -> Any:
            return (("fencepost-reason", "LOCK_HELD"), ("grpc-status-details-bin", b"\xff\xff"))

    assert isinstance(errors.of_call(Failed()), fencepost.LockHeld)


def test_a_request_that_is_too_large_fails_no_other(client: Client, name: str) -> None:
    with client.lock(name) as lock, ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.lock(name, wait=30).acquire)
        until(lambda: client.get(name).waiter_count == 1)
        with pytest.raises(fencepost.InvalidRequest):
            client.lock(f"{name}-2", metadata={"a": "b" * 70_000}).acquire()
        assert lock.is_held and client.get(name).waiter_count == 1
        lock.release()
        waiting.result(10).release()


def test_a_beat_counts_only_for_leases_that_its_stream_keeps(client: Client, name: str) -> None:
    session, lock = client._core.session, client.lock(name, ttl=300).acquire()
    lost = pb.SessionEvent(lost=pb.SessionEvent.Lost(lease_id=lock.lease_id, reason="PERMISSION_DENIED"))

    def renewed(before: Callable[[], Any]) -> bool:
        outcome: Future[bool] = Future()

        def beat() -> None:
            until = lock._until
            session._beat()
            beat = list(session.pending.values())[-1]
            beat.sent = lock._until  # In the future, so that the renewal shows.
            before()
            session._kept(pb.SessionEvent.Kept(id=beat.id))
            outcome.set_result(lock._until > until)

        assert session.loop
        session.loop.call_soon_threadsafe(beat)
        return outcome.result(10)

    assert renewed(list)
    attached_by = lock._attached_by
    # It was attached after the beat was sent, and so may not have been renewed.
    assert not renewed(lambda: setattr(lock, "_attached_by", next(session._ids)))
    lock._attached_by = attached_by
    assert not renewed(lambda: session._event(lost))
    assert lock.is_held
    lock.release()


def test_a_lease_ends_a_little_before_the_server_ends_it(client: Client, name: str) -> None:
    with client.lock(name, ttl=100) as lock:
        assert lock._until <= lock._granted + 100 - 0.1 and lock._tell_at == lock._until - 0.25
        lock.extend(1_000)
        assert lock._until <= now() + 1_000 - 1
