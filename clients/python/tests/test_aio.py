from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from conftest import Proxy, force

import fencepost
from fencepost import FOREVER, AsyncClient, LeaseLost, LockHeld, WaitTimeout
from fencepost.testing import Server

Test = Callable[[AsyncClient], Coroutine[Any, Any, None]]


@pytest.fixture
def run(running: Server) -> Callable[[Test], None]:
    def run(test: Test) -> None:
        async def main() -> None:
            async with AsyncClient(running.address) as client:
                await test(client)

        asyncio.run(main())

    return run


async def until_waiters(client: AsyncClient, name: str, count: int) -> None:
    while (await client.get(name)).waiter_count != count:
        await asyncio.sleep(0.01)


def test_a_block_holds_the_lock_and_releases_it(run: Callable[[Test], None], name: str) -> None:
    async def test(client: AsyncClient) -> None:
        async with client.lock(name, ttl=1) as lock:
            with pytest.raises(LockHeld):
                await client.lock(name).acquire()
            with pytest.raises(WaitTimeout):
                await client.lock(name, wait=0.3).acquire()
            await asyncio.sleep(2)
            assert lock.check() == lock.token
            await lock.update_metadata({"a": "b"})
            await lock.extend(20)
            assert lock.remaining.total_seconds() > 15
        assert (await client.get(name)).holder_count == 0 and not lock.is_held
        with pytest.raises(ZeroDivisionError):
            async with client.lock(name), client.read(f"{name}-r"), client.semaphore(f"{name}-s", limit=2):
                raise ZeroDivisionError
        async with client.lock_all([name, f"{name}-r"]) as locks:
            assert [lock.name for lock in locks] == [name, f"{name}-r"]
        held = await client.lock(name).acquire()
        assert await client.check_token(name, held.token)
        await held.release()
        await held.release()

    run(test)


def test_reentry_is_counted_for_each_task(run: Callable[[Test], None], name: str) -> None:
    async def test(client: AsyncClient) -> None:
        async with client.lock(name, reentrant=True) as outer, client.lock(name, reentrant=True) as inner:
            assert outer is inner
            with pytest.raises(LockHeld):
                await asyncio.create_task(client.lock(name, reentrant=True).acquire())
        assert (await client.get(name)).holder_count == 0

    run(test)


def test_a_storm_of_cancels_leaves_no_lease(run: Callable[[Test], None], name: str) -> None:
    async def test(client: AsyncClient) -> None:
        names = [f"{name}-{number}" for number in range(100)]
        for wait in (None, FOREVER):
            tasks = [asyncio.create_task(client.lock(one, wait=wait, ttl=300).acquire()) for one in names]
            for number, task in enumerate(tasks):
                asyncio.get_running_loop().call_later(number / 2000, task.cancel)
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, fencepost.AsyncLock):
                    await outcome.release()
                else:
                    assert isinstance(outcome, asyncio.CancelledError)
            assert not [one for one in names if (await client.get(one)).holder_count]

    run(test)


def test_a_cancelled_wait_leaves_the_queue(run: Callable[[Test], None], name: str) -> None:
    async def test(client: AsyncClient) -> None:
        async with client.lock(name):
            task = asyncio.create_task(client.lock(name, wait=FOREVER).acquire())
            await until_waiters(client, name, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.get(name)).waiter_count == 0

    run(test)


def test_the_loss_cancels_the_block_and_raises_lease_lost(running: Server, run: Callable[[Test], None], name: str) -> None:
    async def test(client: AsyncClient) -> None:
        told = list[str]()
        lock: fencepost.AsyncLock | None = None
        with pytest.raises(LeaseLost, match="forced"):
            async with client.lock(name) as lock:

                async def slow(loss: LeaseLost) -> None:
                    told.append(loss.cause)
                    await asyncio.sleep(60)

                lock.on_lost(slow)
                await asyncio.sleep(0.7)
                await asyncio.to_thread(force, running, lock)
                await asyncio.sleep(60)
        assert lock and told == ["forced"] and (await lock.wait_lost()).cause == "forced"
        # The task itself is not cancelled any more.
        await asyncio.sleep(0)
        if sys.version_info >= (3, 11):
            task = asyncio.current_task()
            assert task and task.cancelling() == 0

    run(test)


def test_a_cancellation_from_outside_stays_one(run: Callable[[Test], None], name: str) -> None:
    async def test(client: AsyncClient) -> None:
        async def hold() -> None:
            async with client.lock(name):
                await asyncio.sleep(60)

        task = asyncio.create_task(hold())
        while not (await client.get(name)).holder_count:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.get(name)).holder_count == 0

    run(test)


def test_a_blocked_loop_loses_the_lease_and_says_so(run: Callable[[Test], None], name: str) -> None:
    async def test(client: AsyncClient) -> None:
        with pytest.raises(LeaseLost, match="unrenewed"):
            async with client.lock(name, ttl=1) as lock:
                time.sleep(1.5)  # noqa: ASYNC251
                assert not lock.is_held
                with pytest.raises(LeaseLost):
                    lock.check()

    run(test)


def test_a_silent_connection_loses_no_lease(proxy: Proxy, name: str) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.address) as client, client.lock(name, ttl=3) as lock:
            await asyncio.sleep(1.2)
            proxy.silence()
            await asyncio.sleep(4)
            assert lock.is_held

    asyncio.run(main())


def test_cut_connections_fail_no_call(proxy: Proxy, name: str) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.address) as client, client.lock(name, ttl=2):
            for _ in range(10):
                calls = asyncio.gather(*(client.get(name) for _ in range(8)))
                proxy.cut()
                assert all(state.holder_count == 1 for state in await calls)

    asyncio.run(main())


def test_a_wait_of_several_clients_survives_breaks(proxy: Proxy, name: str) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.address) as client:
            running = 0

            async def job() -> None:
                nonlocal running
                async with client.semaphore(name, limit=5, wait=30) as lock:
                    running += 1
                    assert running <= 5
                    await asyncio.sleep(0.05)
                    running -= 1
                    lock.check()

            jobs = asyncio.gather(*(job() for _ in range(40)))
            for _ in range(3):
                await asyncio.sleep(0.1)
                proxy.cut()
            await jobs

    asyncio.run(main())


def test_close_releases_and_ends_waits(running: Server, run: Callable[[Test], None], name: str) -> None:
    async def test(client: AsyncClient) -> None:
        closing = AsyncClient(running.address)
        lock = await closing.lock(name).acquire()
        waiting = asyncio.create_task(closing.lock(name, wait=FOREVER).acquire())
        watch = closing.watch(f"{name}-2")
        await anext(watch)
        watching = asyncio.ensure_future(anext(watch))
        await until_waiters(client, name, 1)
        await closing.close()
        with pytest.raises(fencepost.ClientClosed):
            await waiting
        with pytest.raises(fencepost.ClientClosed):
            await watching
        state = await client.get(name)
        assert (state.holder_count, state.waiter_count, lock.is_held) == (0, 0, False)
        await closing.close()
        with pytest.raises(fencepost.ClientClosed):
            await closing.get(name)

    run(test)


def test_an_election_is_led_and_observed(running: Server, run: Callable[[Test], None], name: str) -> None:
    async def test(client: AsyncClient) -> None:
        election, deposed, led = client.election(name), list[LeaseLost](), list[int]()

        seen = asyncio.Event()

        async def lead(leadership: fencepost.AsyncLeadership) -> str:
            led.append(leadership.token)
            if len(led) == 2:
                await seen.wait()
                return "done"
            await leadership.proclaim("new")
            await asyncio.to_thread(force, running, leadership)
            return await asyncio.sleep(60, "never")

        observer = election.observe()
        assert await anext(observer) is None
        leading = asyncio.create_task(election.lead(lead, deposed.append, value="old", ttl=1))
        tokens = list[int]()
        while len(set(tokens)) < 2:
            if leader := await anext(observer):
                tokens.append(leader.fencing_token)
        seen.set()
        assert await leading == "done" and tokens == sorted(tokens) and len(deposed) == 1
        assert await election.leader() is None
        await observer.aclose()

        @client.once(f"{name}-once", at_least=30)
        async def job() -> int:
            return 5

        assert [await job(), await job()] == [5, None]

    run(test)
