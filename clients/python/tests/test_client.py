from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from conftest import Proxy, force, until

import fencepost
from fencepost import FOREVER, Client, LeaseLost, LockHeld, LockState, WaitTimeout, _session, testing
from fencepost.testing import Server


def waiters(client: Client, name: str) -> int:
    return client.get(name).waiter_count


def test_a_block_holds_the_lock_and_releases_it(client: Client, name: str) -> None:
    with client.lock(name, ttl=timedelta(seconds=5), metadata={"step": "1"}) as lock:
        assert lock.is_held and lock.check() == lock.token and lock.remaining <= timedelta(seconds=5)
        holder = client.get(name).holders[0]
        assert (holder.fencing_token, dict(holder.metadata)) == (lock.token, {"step": "1"})
        lock.update_metadata({"step": "2"})
        assert client.get(name).holders[0].metadata["step"] == "2"
        assert client.check_token(name, lock.token)
        with pytest.raises(LockHeld) as held:
            client.lock(name).acquire()
        assert held.value.details["owner"] == holder.owner
    assert client.get(name).holder_count == 0
    with pytest.raises(LeaseLost, match="released"):
        lock.check()
    with client.lock(name) as next_lock:
        assert next_lock.token > lock.token


def test_a_wait_ends_in_time_or_with_the_lock(client: Client, name: str) -> None:
    lock = client.lock(name).acquire()
    begin = time.monotonic()
    with pytest.raises(WaitTimeout):
        client.lock(name, wait=0.5).acquire()
    assert 0.45 < time.monotonic() - begin < 3
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.lock(name, wait=FOREVER).acquire)
        until(lambda: waiters(client, name) == 1)
        lock.release()
        waiting.result(5).release()
    lock.release()


def test_a_lock_is_renewed_beyond_its_ttl(client: Client, name: str) -> None:
    lost: list[LeaseLost] = []
    with client.lock(name, ttl=1) as lock, client.lock(f"{name}-2", ttl=300) as other:
        lock.on_lost(lost.append)
        assert not lock.wait_lost(3)
        assert lock.is_held and other.is_held and not lost
        lock.extend(20)
        assert lock.remaining > timedelta(seconds=15)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_every_end_of_a_block_releases(client: Client, name: str, error: type[BaseException]) -> None:
    with pytest.raises(error), client.lock(name):
        raise error
    assert client.get(name).holder_count == 0


def test_an_interrupted_wait_leaves_the_queue(client: Client, name: str) -> None:
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            client.lock(name, wait=FOREVER).acquire()
        except BaseException as error:
            ended.append(error)

    with client.lock(name):
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: waiters(client, name) == 1)
        assert thread.ident
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
        thread.join(5)
        assert isinstance(ended[0], KeyboardInterrupt)
        assert waiters(client, name) == 0


def test_a_signal_interrupts_a_wait_of_the_main_thread(client: Client, name: str) -> None:
    # A shell lets what runs in the background ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with client.lock(name):
            threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
            with pytest.raises(KeyboardInterrupt):
                client.lock(name, wait=30).acquire()
            assert waiters(client, name) == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_reentry_is_counted_for_each_thread(client: Client, name: str) -> None:
    request = client.lock(name, reentrant=True)
    with request as outer, client.lock(name, reentrant=True) as inner:
        assert outer.token == inner.token
        with ThreadPoolExecutor() as pool, pytest.raises(LockHeld):
            pool.submit(request.acquire).result()
        inner.release()
        assert outer.is_held and client.get(name).holder_count == 1
    assert client.get(name).holder_count == 0


def test_readers_share_and_semaphores_have_a_limit(client: Client, name: str) -> None:
    with client.read(name), client.read(name), pytest.raises(LockHeld):
        client.write(name).acquire()
    gpu = client.semaphore(f"{name}-gpu", limit=3, permits=2)
    with gpu, pytest.raises(LockHeld):
        gpu.acquire()
    with pytest.raises(fencepost.InvalidRequest, match="permits"):
        client.semaphore(f"{name}-gpu", limit=3, permits=4).acquire()


def test_several_locks_are_taken_without_a_circle(client: Client, name: str) -> None:
    names = [f"{name}-{letter}" for letter in "abcd"]

    def take(turn: int) -> None:
        order = names[turn % 4 :] + names[: turn % 4]
        with client.lock_all(order, wait=20) as locks:
            assert [lock.name for lock in locks] == order and all(lock.is_held for lock in locks)

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(take, range(24)))
    assert not any(client.get(one).holder_count for one in names)


def test_a_forced_release_is_told(client: Client, running: Server, name: str) -> None:
    causes: list[str] = []
    with pytest.raises(LeaseLost), client.lock(name) as lock, client.lock(f"{name}-2", ttl=1) as other:
        lock.on_lost(lambda loss: (causes.append(loss.cause), time.sleep(2)))  # type: ignore[func-returns-value]
        time.sleep(0.7)  # Until its stream has named it.
        force(running, lock)
        assert lock.wait_lost(5) and not lock.is_held
        until(lambda: causes == ["forced"])
        # The callback, which sleeps, does not keep the other lock from its renewals.
        assert not other.wait_lost(1.5)
        lock.on_lost(lambda loss: causes.append("late"))
        until(lambda: "late" in causes)


def test_an_error_of_the_block_comes_before_the_loss(client: Client, running: Server, name: str) -> None:
    with pytest.raises(ZeroDivisionError), client.lock(name) as lock:
        force(running, lock)
        raise ZeroDivisionError


def test_many_leases_with_long_names_are_all_renewed(client: Client, name: str) -> None:
    names = [f"{name}-{'x' * 480}-{number}" for number in range(150)]
    with ThreadPoolExecutor(max_workers=16) as pool:
        locks = list(pool.map(lambda one: client.lock(one, ttl=2).acquire(), names))
        time.sleep(4)
        assert [lock for lock in locks if not lock.is_held] == []
        list(pool.map(lambda lock: lock.release(), locks))


def test_a_silent_connection_loses_no_lease(proxy: Proxy, name: str) -> None:
    with Client(proxy.address) as client, client.lock(name, ttl=3) as lock:
        time.sleep(1.2)
        proxy.silence()
        assert not lock.wait_lost(5)


def test_a_silent_server_loses_the_lease_before_another_client_has_it(client: Client, proxy: Proxy, name: str) -> None:
    silent, told = Client(proxy.address), list[float]()
    lock = silent.lock(name, ttl=2).acquire()
    lock.on_lost(lambda loss: told.append(time.monotonic()))
    time.sleep(1)
    proxy.refuse()
    proxy.silence()
    with client.lock(name, wait=10) as other:
        granted = time.monotonic()
        assert other.token > lock.token and not lock.is_held
    until(lambda: told)
    # A busy machine may call back late; the lock itself reads the clock.
    assert told[0] < granted + 0.5
    with pytest.raises(LeaseLost, match="unrenewed"):
        lock.check()
    with pytest.raises(LeaseLost):
        lock.release()


def test_cut_connections_lose_nothing(proxy: Proxy, name: str) -> None:
    with Client(proxy.address) as client, client.lock(name, ttl=2) as lock:
        for _ in range(10):
            proxy.cut()
            time.sleep(0.3)
            assert client.get(name).holder_count == 1
        assert lock.is_held


def test_a_dead_address_is_passed_over(running: Server, name: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{unused.getsockname()[1]}"
    with Client([dead, running.address]) as client:
        begin = time.monotonic()
        with client.lock(name, wait=5), client.lock(f"{name}-2"):
            assert time.monotonic() - begin < 3
    with pytest.raises(fencepost.Unavailable), Client(dead) as client:
        client.lock(name).acquire()


def test_a_client_goes_on_at_another_server(name: str) -> None:
    with testing.server() as second, Client(second.address) as other:
        with testing.server() as first:
            client = Client(f"{first.address}, {second.address}")
            client.lock(f"{name}-first").acquire()
        with client.lock(name, wait=10):
            assert other.get(name).holder_count == 1


def test_a_shorter_longest_wait_of_the_namespace_is_found(tmp_path: Path, name: str) -> None:
    config = tmp_path / "server.toml"
    config.write_text('[namespaces.default]\nembedded = { path = ":memory:" }\nwait_max = "2h"\n')
    ready = tmp_path / "ready"
    options = ["--config", str(config), "--listen", "127.0.0.1:0", "--ready-file", str(ready), "--data-dir", str(tmp_path)]
    with subprocess.Popen([os.environ["FENCEPOST_BIN"], "serve", *options]) as process:
        until(ready.exists)
        with Client(ready.read_text().strip()) as client, ThreadPoolExecutor() as pool:
            lock = client.lock(name).acquire()
            waiting = pool.submit(client.lock(name, wait=FOREVER).acquire)
            until(lambda: waiters(client, name) == 1)
            lock.release()
            waiting.result(5).release()
        process.kill()


def test_a_wait_outlasts_what_one_call_may_wait(client: Client, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_session, "_LONGEST_WAITS", (0.2,))
    with client.lock(name):
        begin = time.monotonic()
        with pytest.raises(WaitTimeout):
            client.lock(name, wait=1).acquire()
        assert time.monotonic() - begin > 0.9


def test_many_waits_hold_up_no_release(client: Client, proxy: Proxy, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_session, "_WAITS", 50)

    def wait(number: int) -> None:
        with waiting.lock(f"{name}-{number % 8}", wait=30):
            pass

    locks = [client.lock(f"{name}-{number}").acquire() for number in range(8)]
    with Client(proxy.address) as waiting, ThreadPoolExecutor(max_workers=120) as pool:
        own = waiting.lock(f"{name}-own").acquire()
        jobs = [pool.submit(wait, number) for number in range(120)]
        until(lambda: sum(waiters(client, f"{name}-{number}") for number in range(8)) == 50)
        assert proxy.connections == 1
        own.release()
        assert waiters(client, f"{name}-own") == 0
        for lock in locks:
            lock.release()
        for job in jobs:
            job.result(20)


def test_close_releases_and_ends_waits(running: Server, client: Client, name: str) -> None:
    closing = Client(running.address)
    locks = [closing.lock(f"{name}-{number}").acquire() for number in range(70)]
    with ThreadPoolExecutor() as pool, client.lock(name):
        waiting = pool.submit(closing.lock(name, wait=FOREVER).acquire)
        until(lambda: waiters(client, name) == 1)
        closing.close()
        with pytest.raises(fencepost.ClientClosed):
            waiting.result(5)
        until(lambda: waiters(client, name) == 0)
    assert not any(client.get(lock.name).holder_count for lock in locks) and not any(lock.is_held for lock in locks)
    locks[0].release()
    closing.close()
    with pytest.raises(fencepost.ClientClosed):
        closing.lock(name).acquire()


def test_dropped_clients_leave_no_threads_and_no_descriptors(running: Server, name: str) -> None:
    def resources() -> tuple[int, int]:
        gc.collect()
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    Client(running.address).lock(name).acquire().release()
    time.sleep(1.5)
    threads, descriptors = resources()
    for _ in range(50):
        with Client(running.address).lock(name):
            pass
    until(lambda: resources()[0] <= threads and resources()[1] <= descriptors + 5)


def test_a_forked_child_is_refused_and_releases_nothing(client: Client, name: str) -> None:
    request = client.lock(name)
    lock = request.__enter__()
    reader, writer = os.pipe()
    if os.fork() == 0:
        outcomes = []
        try:
            request.__exit__(None, None, None)
            lock.release()
            client.close()
            for use in (lambda: client.lock(f"{name}-2").acquire(), lambda: client.get(name), lock.check):
                try:
                    use()
                    outcomes.append("used")
                except fencepost.ForkedProcess:
                    outcomes.append("refused")
            outcomes.append(str(lock.is_held))
            os.write(writer, " ".join(outcomes).encode())
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 1000) == b"refused refused refused False"
    os.wait()
    assert lock.is_held and client.check_token(name, lock.token)
    request.__exit__(None, None, None)
    assert client.get(name).holder_count == 0


def test_a_forked_child_waits_for_no_loss_of_its_parent(client: Client, name: str) -> None:
    with client.lock(name) as lock:
        watch = client.watch(name)
        next(watch)
        time.sleep(0.5)  # gRPC cannot be forked in the midst of a call.
        child = os.fork()
        if not child:
            try:
                watch.close()
                lock.wait_lost(60)
            except fencepost.ForkedProcess:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        watch.close()


def test_once_runs_a_job_on_one_machine(client: Client, running: Server, name: str) -> None:
    runs: list[int] = []
    jobs = [one.once(name, at_least=1.5)(runs.append) for one in (client, Client(running.address))]
    for _ in range(3):
        for job in jobs:
            job(1)
    assert len(runs) == 1
    until(lambda: (jobs[1](1), len(runs) == 2)[1])

    @client.once(f"{name}-2", at_least=60)
    def fails() -> None:
        raise LockHeld("LOCK_HELD", "of the job itself")

    with pytest.raises(LockHeld):
        fails()
    assert client.get(f"{name}-2").holders[0].remaining_ttl.seconds > 50


def test_an_election_is_led_and_observed(client: Client, running: Server, name: str) -> None:
    election, deposed, led = client.election(name), list[LeaseLost](), list[int]()
    observer = election.observe()
    assert next(observer) is None

    is_seen = threading.Event()

    def lead(leadership: fencepost.Leadership) -> str:
        led.append(leadership.token)
        if len(led) == 1:
            leadership.proclaim("new")
            force(running, leadership)
            assert leadership.wait_lost(15)
        else:
            is_seen.wait(15)
        return "done"

    seen = list[tuple[int, str]]()
    with ThreadPoolExecutor() as pool:
        leading = pool.submit(election.lead, lead, deposed.append, value="old", ttl=1)
        while len({token for token, _ in seen}) < 2:
            if leader := next(observer):
                seen.append((leader.fencing_token, leader.value))
        is_seen.set()
        assert leading.result() == "done"
    # A leader of a moment may be left out.
    assert (led[0], "new") in seen and seen == sorted(seen, key=lambda one: one[0])
    assert [loss.cause for loss in deposed] == ["forced"] and election.leader() is None
    observer.close()


def test_a_watch_and_an_observation_go_on_after_a_break(client: Client, proxy: Proxy, name: str) -> None:
    with Client(proxy.address) as watching:
        watch, observer = watching.watch(name), watching.election(name).observe()
        state = next(watch)
        assert isinstance(state, LockState) and state.holder_count == 0 and next(observer) is None
        proxy.cut()
        with client.election(name).campaign("me"):
            leader = next(observer)
            assert leader and leader.value == "me"
            until(lambda: next(watch).holder_count == 1)


def test_a_unix_socket_serves(tmp_path: Path, name: str) -> None:
    with testing.server("--listen", f"unix:{tmp_path}/s"), Client(f"unix:{tmp_path}/s") as client, client.lock(name) as lock:
        assert lock.is_held


def test_bad_arguments_are_named(client: Client, name: str, tmp_path: Path) -> None:
    for address in ("", "host", "ftp://a:1", "https://unix:/s", "unix:s", "a:1,,b:2"):
        with pytest.raises(ValueError, match="none of host:port"):
            Client([address])
    address_without_tls = "localhost:1,127.0.0.1:1,unix:/s"
    with pytest.raises(ValueError, match="wait is -1"):
        client.lock(name, wait=-1)
    with pytest.raises(ValueError, match="belong together"):
        Client("a:1", cert_file="x")
    (tmp_path / "token").write_text("secret")
    with pytest.raises(ValueError, match="https://"):
        Client("example.com:1", bearer_file=tmp_path / "token")
    for files in {"ca_file": "x"}, {"cert_file": "x", "key_file": "y"}:
        for addresses in "example.com:1", f"{address_without_tls},example.com:1":
            with pytest.raises(ValueError, match="is without TLS"):
                Client(addresses, **files)
        Client(address_without_tls, **files)
    with pytest.raises(OSError, match="missing"):
        Client("https://a:1", ca_file=tmp_path / "missing")
    with pytest.raises(fencepost.InvalidRequest, match="name"):
        client.lock("").acquire()
    with pytest.raises(fencepost.InvalidRequest, match="ttl"):
        client.lock(name, ttl=1e9).acquire()


def test_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(LeaseLost("LEASE_LOST", "gone", {"cause": "forced"})))
    assert (type(error), error.cause, str(error)) == (LeaseLost, "forced", "gone (LEASE_LOST)")


def test_the_spans_show_the_wait_and_the_loss(client: Client, running: Server, name: str) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with trace.get_tracer("test").start_as_current_span("job"), pytest.raises(LeaseLost), client.lock(name, wait=3) as lock:
        time.sleep(0.7)
        force(running, lock)
        assert lock.wait_lost(5)
    acquire, job = exporter.get_finished_spans()
    assert acquire.name == "fencepost.acquire" and acquire.attributes == {
        "fencepost.locks": (name,),
        "fencepost.wait_s": 3.0,
    }
    assert [event.name for event in job.events][:1] == ["lost"]
