"""Forks, event loops, the end of the interpreter, and libraries that replace threads."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Proxy, until

import fencepost
from fencepost import FOREVER, AsyncClient, Client
from fencepost.testing import Server


def in_child(work: Callable[[], str]) -> str:
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writer, work().encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    answer = os.read(reader, 1000).decode()
    os.wait()
    return answer


FORKS = """
import os, sys, fencepost
client = fencepost.Client(sys.argv[1])
child = os.fork()
with client.lock(sys.argv[2], wait=20) as lock:
    assert lock.is_held
if child:
    assert os.waitpid(child, 0)[1] == 0
print(client._core.session._id, flush=True)
"""


def test_a_client_that_was_not_used_works_in_a_forked_child(running: Server, name: str) -> None:
    program = [sys.executable, "-c", FORKS, running.address, name]
    sessions = subprocess.run(program, timeout=40, capture_output=True, text=True).stdout.split()
    assert len(set(sessions)) == 2, "each has a session of its own"


USES = """
import os, sys, time, fencepost
with fencepost.Client(sys.argv[1]) as client, client.lock(sys.argv[2], ttl=60) as lock:
    for number in range(3):
        time.sleep(0.5)  # gRPC cannot be forked in the midst of a call.
        child = os.fork()
        if not child:
            with fencepost.Client(sys.argv[1]) as own, own.lock(f"{sys.argv[2]}-{number}") as theirs:
                assert theirs.is_held and not lock.is_held
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, number
        lock.check()
    print("all")
"""


def test_a_child_makes_a_client_of_its_own(running: Server, name: str) -> None:
    program = [sys.executable, "-c", USES, running.address, name]
    environment = os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "1"}
    ended = subprocess.run(program, timeout=40, capture_output=True, text=True, env=environment)
    assert ended.stdout == "all\n", ended.stderr


def test_a_client_goes_on_in_the_next_event_loop(running: Server, name: str) -> None:
    client = AsyncClient(running.address)

    async def take() -> fencepost.AsyncLock:
        return await client.lock(name, ttl=2).acquire()

    async def hold(lock: fencepost.AsyncLock) -> None:
        assert (await client.get(name)).holder_count == 1
        await asyncio.sleep(3)
        assert lock.is_held, "its lease is renewed there"
        await lock.release()
        await client.close()

    asyncio.run(hold(asyncio.run(take())))
    with pytest.raises(fencepost.ClientClosed):
        asyncio.run(take())


def test_two_event_loops_at_once_are_refused(running: Server, name: str) -> None:
    async def main() -> None:
        async with AsyncClient(running.address) as client:
            await client.get(name)
            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(other(client)))

    async def other(client: AsyncClient) -> None:
        await client.get(name)

    asyncio.run(main())


def test_the_first_waits_are_queued_in_their_order(running: Server, client: Client, proxy: Proxy, name: str) -> None:
    order = list[int]()

    async def main() -> None:
        async with AsyncClient(proxy.address) as waiting:

            async def wait(number: int) -> None:
                async with waiting.lock(name, wait=FOREVER):
                    order.append(number)

            waits = [asyncio.ensure_future(wait(number)) for number in range(100)]
            while client.get(name).waiter_count < 100:
                await asyncio.sleep(0.05)
            lock.release()
            await asyncio.gather(*waits)

    lock = client.lock(name).acquire()
    asyncio.run(main())
    assert order == list(range(100))


PROGRAMS = {
    "a generator that observes": """
        observer = client.election("e").observe()
        next(observer)
    """,
    "a generator that holds": """
        def holds():
            with client.lock("a", ttl=2):
                yield
        generator = holds()
        next(generator)
    """,
    "an object that releases when it is collected": """
        class Job:
            def __init__(self): self.lock = client.lock("b", ttl=2).acquire()
            def __del__(self): self.lock.release()
        job = Job(); job.itself = job
    """,
    "a release at the exit": """
        import atexit
        lock = client.lock("c").acquire()
        atexit.register(lock.release)
        atexit.register(client.close)
    """,
    "a thread that waits": """
        import threading, time
        lock = client.lock("d", ttl=2).acquire()
        threading.Thread(target=client.lock("d", wait=60).acquire, daemon=True).start()
        time.sleep(0.5)
    """,
    "an interrupted main": """
        import os, signal, threading
        lock = client.lock("f", ttl=2).acquire()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
        try: client.lock("f", wait=60).acquire()
        except KeyboardInterrupt: pass
    """,
    "nothing": "",
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_program_ends(running: Server, what: str) -> None:
    lines = [line[8:] for line in PROGRAMS[what].splitlines()]
    program = "\n".join(["import sys, fencepost", "client = fencepost.Client(sys.argv[1])", *lines])
    begin = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", program, running.address], timeout=20, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "") and time.monotonic() - begin < 15


def test_a_job_that_exits_keeps_its_lock_taken_for_its_time(running: Server, client: Client, name: str) -> None:
    program = """
import sys, fencepost
@fencepost.Client(sys.argv[1]).once(sys.argv[2], at_least=3)
def job(): print("ran")
job()
"""
    begin = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", program, running.address, name], timeout=20, capture_output=True)
    assert ended.stdout == b"ran\n" and client.get(name).holder_count == 1
    client.lock(name, wait=20).acquire().release()
    assert 3 <= time.monotonic() - begin < 20


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("module", "function"), [("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched")]
)
def test_replaced_threads_are_refused(kind: Any, module: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patched: Any = types.ModuleType(module)
    setattr(patched, function, lambda name: True)
    monkeypatch.setitem(sys.modules, module, patched)
    with pytest.raises(RuntimeError, match=module.partition(".")[0]):
        kind()
    setattr(patched, function, lambda name: False)
    kind()


def test_a_lock_that_is_dropped_is_renewed_no_more(client: Client, name: str, caplog: pytest.LogCaptureFixture) -> None:
    client.lock(name, ttl=2).acquire()
    until(lambda: f"the lock {name} is not renewed" in caplog.text)
    until(lambda: client.get(name).holder_count == 0)
    request = client.lock(name, ttl=2)
    request.acquire()
    time.sleep(3)
    assert request.owned() and client.get(name).holder_count == 1
    request.release()
