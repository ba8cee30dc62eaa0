"""An interrupt at any moment, a cancellation, and calls that are only slow."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import Proxy, until

from fencepost import FOREVER, AsyncClient, Client, Lock
from fencepost._clock import now
from fencepost.testing import Server


class Interrupt(BaseException): ...


def interrupted(moment: int, work: Callable[[], Any], before: Callable[[], Any] = list, since: str = "") -> bool:
    """Runs `before` and `work` in a thread, and interrupts `work` at a moment after a function began: Python looks for
    interrupts when a function of Python begins and when one of C returns. Returns whether that came before its end."""

    def body() -> bool:
        left, counts = moment, not since

        def profile(frame: Any, event: str, argument: Any) -> None:
            nonlocal left, counts
            counts = counts or frame.f_code.co_name == since
            if counts and event in ("call", "c_return"):
                left -= 1
                if left == 0:
                    raise Interrupt

        before()
        sys.setprofile(profile)
        try:
            work()
        except Interrupt:
            return True
        finally:
            sys.setprofile(None)
        return False

    outcome = list[Any]()
    thread = threading.Thread(target=lambda: outcome.append(body()), daemon=True)
    thread.start()
    thread.join(20)
    assert outcome, f"it hangs after an interrupt at moment {moment}"
    return bool(outcome[0])


def at_every_moment(work: Callable[[], Any], after: Callable[[], Any], *when: Any) -> None:
    """Interrupts `work` at each moment, and looks at what it left behind."""
    for moment in range(1, 2_000):
        was_interrupted = interrupted(moment, work, *when)
        after()
        if not was_interrupted:
            assert moment > 5
            return
    raise AssertionError("it does not end")


def works(client: Client, name: str) -> None:
    """Another thread can use the client."""
    with ThreadPoolExecutor() as pool:
        pool.submit(client.lock(f"{name}-2", wait=5).acquire).result(10).release()


@pytest.mark.parametrize("wait", [None, 5])
def test_an_interrupted_acquire_leaves_nothing(client: Client, running: Server, name: str, wait: float | None) -> None:
    acquired = list[Any]()

    def after() -> None:
        while acquired:
            acquired.pop().release()
        with Client(running.address) as other:
            until(lambda: other.get(name).holder_count == other.get(name).waiter_count == 0)
        works(client, name)

    at_every_moment(lambda: acquired.append(client.lock(name, wait=wait, ttl=300).acquire()), after)


def test_an_interrupted_begin_of_a_block_leaves_nothing(client: Client, running: Server, name: str) -> None:
    request, entered = client.lock(name, wait=5, ttl=300), list[Any]()

    def after() -> None:
        while entered:
            entered.pop()
            request.__exit__(None, None, None)
        with Client(running.address) as other:
            until(lambda: other.get(name).holder_count == 0)
        until(lambda: not request._taken)
        works(client, name)

    at_every_moment(lambda: entered.append(request.__enter__()), after)


def test_an_interrupted_end_of_a_block_releases(client: Client, running: Server, name: str) -> None:
    request = client.lock(name, wait=5, ttl=300)

    def after() -> None:
        with Client(running.address) as other:
            until(lambda: other.get(name).holder_count == 0)
        works(client, name)

    # Before that, only Python could begin it once more.
    at_every_moment(lambda: request.__exit__(None, None, None), after, request.__enter__, "wait")


def test_an_interrupted_wait_for_a_loss_hides_no_release(client: Client, name: str) -> None:
    lock = client.lock(name, ttl=300).acquire()
    for moment in range(1, 30):
        interrupted(moment, lambda: lock.wait_lost(0.01))
    releasing = threading.Thread(target=lock.release, daemon=True)
    releasing.start()
    releasing.join(10)
    assert not releasing.is_alive() and lock.wait_lost(0)


def silent_grant(client: Client, proxy: Proxy, lock: Lock) -> None:
    """Grants a lock to who waits for it by a proxy, while no answer can arrive on any of its connections."""
    until(lambda: client.get(lock.name).waiter_count == 1)
    proxy.silence()
    lock.release()
    until(lambda: client.get(lock.name).holder_count == 1)


def test_an_interrupted_wait_is_undone_over_a_new_connection(client: Client, proxy: Proxy, name: str) -> None:
    waiting = Client(proxy.address)
    warm, ended = waiting.lock(f"{name}-2", wait=5, ttl=60).acquire(), list[BaseException]()

    def wait() -> None:
        try:
            waiting.lock(name, wait=FOREVER, ttl=300).acquire()
        except Interrupt as error:
            ended.append(error)

    lock = client.lock(name).acquire()
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    silent_grant(client, proxy, lock)
    assert thread.ident
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupt))
    begin = now()
    until(lambda: ended)
    assert now() - begin < 8, "the caller waits for 5 s"
    until(lambda: client.get(name).holder_count == 0, 15)
    assert warm.is_held
    waiting.close()


def test_a_cancelled_wait_is_undone_over_a_new_connection(client: Client, proxy: Proxy, name: str) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.address) as waiting:
            await waiting.lock(f"{name}-2", wait=5, ttl=60).acquire()
            lock = client.lock(name).acquire()
            task = asyncio.create_task(waiting.lock(name, wait=FOREVER, ttl=300).acquire())
            await asyncio.to_thread(silent_grant, client, proxy, lock)
            begin = now()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert now() - begin < 8, "the caller waits for 5 s"
            await asyncio.to_thread(until, lambda: client.get(name).holder_count == 0, 15)

    asyncio.run(main())
