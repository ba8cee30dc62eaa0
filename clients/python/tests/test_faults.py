"""What fails beside a client, and that this ends nothing else: tracers, callbacks, functions of the user, and close."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from conftest import Proxy, until

import fencepost
from fencepost import FOREVER, AsyncClient, Client, LeaseLost, _session, _settings, _tracing
from fencepost._clock import now
from fencepost.testing import Server
from fencepost.v1 import lock_pb2 as pb


def in_loop(client: Client, work: Callable[[], Any]) -> Any:
    """Runs a function in the thread of the clients."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    loop = client._core.session.loop
    assert loop
    loop.call_soon_threadsafe(run)
    return outcome.result(10)


# Leases.


def test_a_lease_that_is_told_lost_is_renewed_no_more(client: Client, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with client.lock(f"{name}-2", ttl=1) as other:
        lock, told = client.lock(name, ttl=2).acquire(), list[str]()
        lock.on_lost(lambda loss: told.append(loss.cause))
        monkeypatch.setattr(lock, "_renewed", lambda *confirmation: None)
        until(lambda: told == ["unrenewed"], 4)
        until(lambda: client.get(name).holder_count == 0, 6)
        assert other.is_held
        with pytest.raises(LeaseLost):
            lock.release()
        assert told == ["unrenewed"]


def test_an_extension_that_comes_too_late_holds_nothing(client: Client, name: str) -> None:
    lock = client.lock(name, ttl=300).acquire()
    lock._until = now()
    with pytest.raises(LeaseLost):
        lock.extend(600)
    until(lambda: client.get(name).holder_count == 0)


# What is of the user.


class Failing:
    """A tracer that fails at one of its uses."""

    def __init__(self, where: str) -> None:
        self._where = where

    def _at(self, place: str) -> None:
        if place == self._where:
            raise ValueError(f"the tracer fails at {place}")

    def get_tracer(self, name: str) -> Failing:
        self._at("get_tracer")
        return self

    def start_as_current_span(self, name: str, attributes: Any) -> Failing:
        self._at("start")
        return self

    def get_current_span(self) -> None:
        self._at("current")

    def __enter__(self) -> None:
        self._at("enter")

    def __exit__(self, *error: Any) -> None:
        self._at("exit")


@pytest.mark.parametrize("where", ["get_tracer", "start", "current", "enter", "exit"])
def test_a_tracer_that_fails_ends_no_acquire(
    client: Client, running: Server, name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tracing, "trace", Failing(where))
    with client.lock(name) as lock:
        assert lock.is_held
        with pytest.raises(fencepost.LockHeld):
            client.lock(name).acquire()
    assert client.get(name).holder_count == 0

    async def main() -> None:
        async with AsyncClient(running.address) as asynchronous:
            async with asynchronous.lock(name):
                with pytest.raises(fencepost.LockHeld):
                    await asynchronous.lock(name).acquire()
            assert (await asynchronous.get(name)).holder_count == 0

    asyncio.run(main())


def test_a_deposed_leader_whose_callback_fails_campaigns_again(client: Client, running: Server, name: str) -> None:
    def deposed(loss: LeaseLost) -> None:
        raise ValueError("the callback failed")

    led = list[int]()

    def lead(leadership: fencepost.Leadership) -> str:
        led.append(leadership.token)
        if len(led) == 1:
            client.force_release(name, leadership.token)
            assert leadership.wait_lost(10)
        return "done"

    assert client.election(name).lead(lead, deposed) == "done" and len(led) == 2

    async def main() -> None:
        async with AsyncClient(running.address) as asynchronous:
            led.clear()

            async def lead(leadership: fencepost.AsyncLeadership) -> str:
                led.append(leadership.token)
                if len(led) == 1:
                    await asynchronous.force_release(name, leadership.token)
                    await asyncio.sleep(10)
                return "done"

            assert await asynchronous.election(name).lead(lead, deposed) == "done" and len(led) == 2

    asyncio.run(main())


class Exits(logging.Handler):
    """A handler that wants to end the program."""

    def emit(self, record: logging.LogRecord) -> None:
        raise SystemExit


def test_nothing_that_exits_ends_the_thread_of_the_clients(proxy: Proxy, name: str) -> None:
    logger, handler = logging.getLogger("fencepost"), Exits()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with Client(proxy.address) as client, client.lock(name, ttl=2) as lock:
            proxy.cut()
            assert not lock.wait_lost(4) and client.get(name).holder_count == 1
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)


def test_a_callback_that_finds_no_thread_ends_no_renewals(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "fencepost-callback":
            raise RuntimeError("can't start new thread")
        start(thread)

    with client.lock(f"{name}-2", ttl=2) as other:
        lost = [client.lock(f"{name}-{number}", ttl=60).acquire() for number in (3, 4)]
        monkeypatch.setattr(threading.Thread, "start", refuse)
        for lock in lost:
            lock.on_lost(lambda loss: None)
            lock._until = now()
        assert lost[1].wait_lost(5) and not other.wait_lost(3)
    assert "can't start new thread" in caplog.text


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_token_function_that_fails_is_an_error(running: Server, name: str, error: type[BaseException]) -> None:
    def token() -> str:
        raise error("no token")

    with Client(running.address, token=token) as client, pytest.raises(fencepost.Unavailable, match="no token"):
        client.lock(name).acquire()


def test_a_token_function_that_hangs_costs_no_lease(proxy: Proxy, name: str) -> None:
    hang, asked = threading.Event(), list[int]()

    def token() -> str:
        asked.append(1)
        if len(asked) == 2:
            hang.wait()
        return "token"

    with Client(proxy.address, token=token) as client, client.lock(name, ttl=20) as lock:
        proxy.cut()
        begin = now()
        until(lambda: len(asked) > 2, 8)
        assert now() - begin > 3
        client.get(name)
        assert lock.is_held
    hang.set()


def test_a_token_coroutine_that_is_slow_is_awaited(running: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_settings, "_TOKEN", 0.5)
    asked = list[int]()

    async def token() -> str:
        asked.append(1)
        await asyncio.sleep(1.2)
        return "token"

    async def main() -> None:
        async with AsyncClient(running.address, token=token) as client:
            await client.lock(name, wait=5).acquire()
            assert len(asked) <= 3
            threads = threading.active_count()
            assert threads < 20

    asyncio.run(main())


def test_what_is_collected_in_the_thread_of_the_clients_stops_it_not(client: Client, name: str) -> None:
    gc.collect()
    other, seen = client.lock(name, ttl=300), list[str]()

    def block() -> Iterator[None]:
        with other:
            yield

    class Job:
        def __del__(self) -> None:
            try:
                client.get(name)
            except RuntimeError as error:
                seen.append(str(error))

    def make() -> None:
        cycle: Any = [Job(), block(), client.election(name).observe()]
        cycle.append(cycle)
        next(cycle[1])
        next(cycle[2])

    gc.disable()
    try:
        make()
        in_loop(client, gc.collect)
    finally:
        gc.enable()
    until(lambda: client.get(name).holder_count == 0)
    until(lambda: not any(command.watched for command in client._core.session.pending.values()))
    assert seen == ["the client's own thread cannot wait for it"]


# Watches.


def changes(session: Any, count: int) -> None:
    (command,) = [command for command in session.pending.values() if command.watched]
    for number in range(count):
        message = pb.WatchLockResponse(change=pb.LockChange(fencing_token=number))
        session._event(pb.SessionEvent(watched=pb.SessionEvent.Watched(id=command.id, message=message)))


def test_a_watch_that_was_not_read_begins_with_the_state(client: Client, running: Server, name: str) -> None:
    watch = client.watch(name)
    assert isinstance(next(watch), fencepost.LockState)
    in_loop(client, lambda: changes(client._core.session, 1_500))
    assert isinstance(next(watch), fencepost.LockState)
    with client.lock(name):
        assert isinstance(next(watch), fencepost.LockChange)
    watch.close()

    async def main() -> None:
        async with AsyncClient(running.address) as asynchronous:
            watch = asynchronous.watch(name)
            assert isinstance(await anext(watch), fencepost.LockState)
            changes(asynchronous._core.session, 1_500)
            assert isinstance(await anext(watch), fencepost.LockState)

    asyncio.run(main())


# Close.


@contextmanager
def proxied(running: Server) -> Iterator[Proxy]:
    proxy = Proxy(running.address)
    yield proxy
    proxy.refuse()
    proxy.cut()


def test_close_takes_5_s_at_most(client: Client, proxy: Proxy, name: str) -> None:
    closing, lock = Client(proxy.address), client.lock(name).acquire()
    held = closing.lock(f"{name}-2", ttl=300).acquire()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(closing.lock(name, wait=FOREVER).acquire)
        until(lambda: client.get(name).waiter_count == 1)
        proxy.refuse()
        proxy.silence()
        begin = now()
        with pytest.raises(fencepost.NotReleased):
            closing.close()
        assert now() - begin < 6.5
        with pytest.raises(fencepost.ClientClosed):
            waiting.result(5)
    begin = now()
    held.release()
    closing.close()
    assert now() - begin < 1
    lock.release()


def test_an_error_of_a_block_comes_before_that_of_its_close(running: Server, name: str) -> None:
    held = list[fencepost.HeldLock]()
    with proxied(running) as proxy, pytest.raises(ZeroDivisionError), Client(proxy.address) as closing:
        held.append(closing.lock(name, ttl=300).acquire())
        proxy.refuse()
        proxy.cut()
        raise ZeroDivisionError
    assert not held[0].is_held

    async def main() -> None:
        async with AsyncClient(proxy.address) as closing:
            held.append(await closing.lock(f"{name}-2", ttl=300).acquire())
            proxy.refuse()
            proxy.cut()
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(1)

    with proxied(running) as proxy, pytest.raises(asyncio.CancelledError):
        asyncio.run(main())


def test_a_release_after_close_ends(proxy: Proxy, name: str) -> None:
    closing = Client(proxy.address)
    lock = closing.lock(name, ttl=300).acquire()
    lock._until = now()
    assert lock.wait_lost(5)
    closing.close()
    proxy.refuse()
    proxy.cut()
    with ThreadPoolExecutor() as pool:
        with pytest.raises(LeaseLost):
            pool.submit(lock.release).result(8)
        assert not closing._core.session.pending
    assert threading.active_count() and not closing._core.session.channel


def test_close_confirms_what_is_given_back_meanwhile(client: Client, running: Server, name: str) -> None:
    """Also what a task was granted that was cancelled in this moment."""

    async def main() -> None:
        closing = AsyncClient(running.address)
        await closing.get(name)
        session: Any = closing._core.session
        result, task = session._result, asyncio.ensure_future(closing.lock(name, ttl=300).acquire())

        def cancelled(answer: Any) -> None:
            if answer.HasField("acquire"):
                task.cancel()
            result(answer)

        session._result = cancelled
        with pytest.raises(asyncio.CancelledError):
            await task
        await closing.close()

    asyncio.run(main())
    assert client.get(name).holder_count == 0


def test_nothing_runs_after_close(running: Server, name: str) -> None:
    async def main() -> None:
        client = AsyncClient(running.address)
        await client.lock(name).acquire()
        await client.close()
        assert asyncio.all_tasks() == {asyncio.current_task()} and not client._core.session._call

    asyncio.run(main())


def test_an_acquire_that_is_granted_at_the_close_is_closed(running: Server, client: Client, name: str) -> None:
    async def main() -> None:
        closing = AsyncClient(running.address)
        await closing.get(name)
        session: Any = closing._core.session
        result, closes = session._result, list[Any]()

        def closed(answer: Any) -> None:
            if answer.HasField("acquire"):
                closes.append(asyncio.ensure_future(closing.close()))
            result(answer)

        session._result = closed
        with pytest.raises(fencepost.ClientClosed):
            await closing.lock(name, ttl=300).acquire()
        await closes[0]

    asyncio.run(main())
    assert client.get(name).holder_count == 0


def test_a_client_of_another_loop_that_runs_is_not_closed(running: Server, name: str) -> None:
    async def main() -> None:
        client = AsyncClient(running.address)
        lock = await client.lock(name).acquire()
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(client.close()))
        assert lock.is_held
        await client.close()
        assert not lock.is_held

    asyncio.run(main())


def test_a_lock_of_a_loop_that_is_over_is_released_in_the_next_one(running: Server, client: Client, name: str) -> None:
    other = AsyncClient(running.address)

    async def take() -> fencepost.AsyncLock:
        return await other.lock(name, ttl=300).acquire()

    lock = asyncio.run(take())
    asyncio.run(asyncio.wait_for(lock.release(), 8))
    assert client.get(name).holder_count == 0


# Commands.


def test_commands_that_wait_for_room_keep_their_order(running: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_session, "_OTHERS", 2)

    async def main() -> None:
        async with AsyncClient(running.address) as client:
            await client.get("a")
            session: Any = client._core.session
            sent = list[str]()
            send = session._call.send

            def count(message: Any) -> None:
                if message.HasField("get_lock"):
                    sent.append(message.get_lock.name)
                send(message)

            session._call.send = count
            result = session._result

            def more(answer: Any) -> None:
                result(answer)
                if len(asked) < 40:
                    ask()

            asked = list[Any]()

            def ask() -> None:
                request = pb.GetLockRequest(namespace="default", name=f"{len(asked):02}")
                asked.append(session.start(get_lock=request))

            session._result = more
            for _ in range(8):
                ask()
            asked[4].cancel()
            while len(asked) < 40:
                await asyncio.sleep(0.01)
            await asyncio.wait(asked)
            assert sent == sorted(sent)

    asyncio.run(main())


def test_a_result_that_comes_too_late_makes_room(running: Server) -> None:
    async def main() -> None:
        async with AsyncClient(running.address) as client:
            await client.get("a")
            session: Any = client._core.session
            with pytest.raises(fencepost.Unavailable):
                await session.request(0, get_lock=pb.GetLockRequest(namespace="default", name="a"))
            await client.get("a")
            assert session._in_flight == (set(), set())

    asyncio.run(main())


def test_a_call_on_a_connection_that_has_just_ended_is_repeated(running: Server, name: str) -> None:
    async def main() -> None:
        async with AsyncClient(running.address) as client:
            session: Any = client._core.session
            closed = list[bool]()

            async def token() -> None:
                if session.channel and not closed:
                    closed.append(True)
                    session.channel.close()

            client._core.settings.token = token  # type: ignore[method-assign]
            assert await client.election(name).leader() is None and closed

    asyncio.run(main())


def test_the_clock_goes_on_when_a_look_fails(client: Client, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, failed = client._core.session, list[bool]()
    with client.lock(name, ttl=2) as lock:
        stuck_at = session._stuck_at

        def fail(locks: Any) -> float:
            if len(failed) < 2:
                failed.append(True)
                raise ValueError
            return stuck_at(locks)

        monkeypatch.setattr(session, "_stuck_at", fail)
        until(lambda: len(failed) == 2, 8)
        assert not lock.wait_lost(3)


def test_a_stream_that_finds_no_thread_leaves_no_connection(
    running: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import grpc

    start, opened, closed, refused = threading.Thread.start, list[Any](), list[Any](), list[bool]()
    connect = grpc.insecure_channel

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "fencepost-stream" and not refused:
            refused.append(True)
            raise RuntimeError("can't start new thread")
        start(thread)

    def counted(*arguments: Any) -> Any:
        channel: Any = connect(*arguments)
        opened.append(channel)
        close = channel.close

        def count() -> None:
            closed.append(channel)
            close()

        channel.close = count
        return channel

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(grpc, "insecure_channel", counted)
    with Client(running.address) as client, client.lock(name, wait=5):
        assert refused and len(opened) == 2 and closed == opened[:1]


def test_a_port_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="99999"):
        Client("localhost:99999")
