"""What users know from other locks."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import Proxy, until

import fencepost
from fencepost import AsyncClient, Client, LockHeld
from fencepost.testing import Server


def test_a_request_is_used_as_a_lock_of_threading(client: Client, running: Server, name: str) -> None:
    lock = client.lock(name)
    assert not lock.owned() and lock.acquire(blocking=False) and lock.owned()
    with Client(running.address, owner="other") as other:
        assert other.lock(name, wait=60).acquire(blocking=False) is None
    with ThreadPoolExecutor() as pool:
        assert not pool.submit(lock.owned).result()
    lock.release()
    assert not lock.owned() and client.get(name).holder_count == 0
    with pytest.raises(RuntimeError, match="not acquired"):
        lock.release()
    with lock, pytest.raises(LockHeld):
        lock.acquire()

    async def main() -> None:
        async with AsyncClient(running.address) as asynchronous:
            lock = asynchronous.lock(name)
            assert await lock.acquire(blocking=False) and lock.owned()
            assert await asynchronous.lock(name).acquire(blocking=False) is None
            await lock.release()
            assert not lock.owned()

    asyncio.run(main())


def test_who_holds_a_lock_is_told(client: Client, running: Server, name: str) -> None:
    with Client(running.address, owner="night") as other, other.lock(name, ttl=20), pytest.raises(LockHeld) as held:
        client.lock(name).acquire()
    assert held.value.owner == "night" and held.value.remaining
    assert timedelta(seconds=10) < held.value.remaining <= timedelta(seconds=20)


def test_one_lock_may_be_asked_for_as_several(client: Client, name: str) -> None:
    with client.lock_all([name]) as locks:
        assert [lock.name for lock in locks] == [name]
        with pytest.raises(LockHeld):
            client.lock_all([name]).acquire()


def test_locks_are_listed_and_released_by_force(client: Client, running: Server, name: str) -> None:
    locks = [client.lock(f"{name}/{number:03}").acquire() for number in range(150)]
    assert [lock.name for lock in client.list(f"{name}/")] == [lock.name for lock in locks]
    client.force_release(locks[0].name, locks[0].token)
    assert locks[0].wait_lost(10)
    with pytest.raises(fencepost.LeaseLost):
        client.force_release(locks[0].name, locks[0].token)

    async def main() -> None:
        async with AsyncClient(running.address) as asynchronous:
            assert len([lock async for lock in asynchronous.list(f"{name}/")]) == 149
            await asynchronous.force_release(locks[1].name, locks[1].token)

    asyncio.run(main())
    assert locks[1].wait_lost(10)


def generates() -> Any:
    yield


async def later() -> int:
    return 1


async def generates_later() -> Any:
    yield


class Job: ...


@pytest.mark.parametrize("job", [generates, later, generates_later, Job, staticmethod(Job), functools.partial(later)])
def test_once_refuses_what_would_run_without_the_lock(client: Client, name: str, job: Any) -> None:
    with pytest.raises(TypeError, match="once takes a function"):
        client.once(name)(job)


def test_once_refuses_a_result_that_would_run_later(client: Client, running: Server, name: str) -> None:
    with pytest.raises(TypeError, match="run later"):
        client.once(name)(lambda: generates())()

    async def main() -> None:
        async with AsyncClient(running.address) as asynchronous:
            jobs: list[Any] = [generates, generates_later, Job]
            for job in jobs:
                with pytest.raises(TypeError, match="once takes a function"):
                    asynchronous.once(name)(job)
            plain: Any = lambda: 7  # noqa: E731
            assert await asynchronous.once(name)(plain)() == 7
            assert await asynchronous.once(name)(later)() == 1

    asyncio.run(main())


def test_an_at_least_beyond_the_bounds_fails_before_the_job(client: Client, name: str) -> None:
    ran = list[int]()
    with pytest.raises(fencepost.InvalidRequest, match="ttl"):
        client.once(name, at_least=1e7)(lambda: ran.append(1))()
    assert not ran and client.get(name).holder_count == 0


def test_an_at_least_holds_also_if_the_process_dies(client: Client, name: str) -> None:
    def job() -> None:
        left = client.get(name).holders[0].remaining_ttl
        assert 50 < left.seconds <= 60

    client.once(name, at_least=60, ttl=3)(job)()


def test_a_loss_is_told_before_the_next_grant(client: Client, proxy: Proxy, name: str) -> None:
    """Under load too: the signal comes a twentieth of the TTL early."""
    told, granted = list[float](), list[float]()

    def wait() -> None:
        with client.lock(name, wait=30):
            granted.append(time.monotonic())

    silent = Client(proxy.address)
    lock = silent.lock(name, ttl=5).acquire()
    lock.on_lost(lambda loss: told.append(time.monotonic()))
    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(2)
    proxy.refuse()
    proxy.silence()
    waiting.join()
    until(lambda: told)
    assert told[0] < granted[0]
    silent._core.session.end()


def test_a_callback_that_fails_ends_nothing(client: Client, name: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(loss: fencepost.LeaseLost) -> None:
        raise ValueError("the callback failed")

    with client.lock(f"{name}-2", ttl=2) as other:
        lock = client.lock(name).acquire()
        lock.on_lost(fail)
        client.force_release(name, lock.token)
        until(lambda: "the callback failed" in caplog.text)
        assert not other.wait_lost(3)


def test_no_proxy_variable_is_obeyed(running: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    with Client(running.address) as client, client.lock(name):
        pass


def test_short_locks_renew_no_others(running: Server, name: str, tmp_path: Path) -> None:
    beats = list[Any]()
    with Client(running.address) as client:
        names = [f"{name}-{number}" for number in range(200)]
        with ThreadPoolExecutor(16) as pool:
            locks = list(pool.map(lambda one: client.lock(one, ttl=60).acquire(), names))
        kept = client._core.session._kept
        client._core.session._kept = lambda answer: (beats.append(answer), kept(answer))  # type: ignore[assignment, func-returns-value]
        for _ in range(100):
            with client.lock(name, ttl=60):
                time.sleep(0.02)
        assert len(beats) <= 1 and all(lock.is_held for lock in locks)
