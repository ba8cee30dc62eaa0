"""The driver of the scenarios over the blocking client: commands on stdin, events on stdout, one JSON object a line."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

import fencepost
from fencepost import Client, Lock
from fencepost.v1 import lock_pb2 as pb
from fencepost.v1.lock_pb2_grpc import LockServiceStub

KINDS = [
    (fencepost.LockHeld, "held"),
    (fencepost.WaitTimeout, "timeout"),
    (fencepost.LeaseLost, "lost"),
    (fencepost.PermissionDenied, "denied"),
    (fencepost.Unauthenticated, "unauthenticated"),
    (fencepost.Overloaded, "overloaded"),
    (fencepost.InvalidRequest, "invalid"),
    (fencepost.ClientClosed, "closed"),
    (fencepost.ForkedProcess, "forked"),
    (fencepost.Superseded, "superseded"),
    (fencepost.Unavailable, "unavailable"),
    (KeyboardInterrupt, "interrupted"),
]
Command = dict[str, Any]


class Boom(Exception): ...


class Cancelled(BaseException): ...


def emit(event: str, command: Command, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, "id": command.get("id"), **fields}) + "\n")
    sys.stdout.flush()


def failed(command: Command, error: BaseException) -> None:
    is_own = {Boom: "boom", Cancelled: "cancelled"}
    kind = is_own.get(type(error)) or next((name for kind, name in KINDS if isinstance(error, kind)), "other")
    emit("failed", command, kind=kind, reason=getattr(error, "reason", ""), message=str(error))


def seconds(command: Command, field: str) -> float | None:
    value = command.get(field)
    return None if value is None else fencepost.FOREVER if value < 0 else value / 1000


def request(client: Any, command: Command) -> Any:
    times: dict[str, Any] = {"wait": seconds(command, "wait"), "ttl": seconds(command, "ttl")}
    mode = command.get("mode", "exclusive")
    if command["op"] == "campaign":
        return client.election(command["name"]).campaign(command.get("value", ""), **times)
    if "names" in command:
        return client.lock_all(command["names"], **times)
    if mode == "shared":
        return client.read(command["name"], **times)
    if isinstance(mode, dict):
        return client.semaphore(command["name"], limit=mode["limit"], permits=mode["permits"], **times)
    options = {"metadata": command.get("metadata"), "reentrant": command.get("reentrant", False)}
    return client.lock(command["name"], **times, **options)


class Block(threading.Thread):
    """A thread that takes a lock in a block, and stays inside until it is told how to leave."""

    def __init__(self, client: Client, command: Command) -> None:
        super().__init__(daemon=True)
        self.client, self.command, self.how = client, command, ""
        self.locks: list[Lock] = []
        self.has_ended = False
        self.runs, self.is_told = threading.Event(), threading.Event()
        self.start()
        self.runs.wait()

    def run(self) -> None:
        try:
            self.runs.set()
            if self.command["op"] == "observe":
                for leader in self.client.election(self.command["name"]).observe():
                    fields = (
                        {"token": leader.fencing_token, "value": leader.value} if leader else {"token": None, "value": ""}
                    )
                    emit("leader", self.command, **fields)
                return
            with request(self.client, self.command) as held:
                self.locks = held if isinstance(held, list) else [held]
                for lock in self.locks:
                    lock.on_lost(self.lost)
                emit("granted", self.command, token=self.locks[0].token, tokens=[lock.token for lock in self.locks])
                while not self.how and not self.is_told.is_set():
                    time.sleep(0.01)
                if self.how == "throw":
                    raise Boom("boom")
                if self.how == "exit":
                    sys.exit("boom")
            emit("released", self.command)
        except SystemExit:
            failed(self.command, Boom("exit"))
        except BaseException as error:
            self.has_ended = True
            failed(self.command, error)

    def lost(self, loss: fencepost.LeaseLost) -> None:
        emit("lost", self.command, cause=loss.cause)
        self.is_told.set()

    def interrupt(self, error: type[BaseException]) -> None:
        """Raises an error in the thread. Python may raise it in a thread that this one starts, and so it is repeated: later
        than the client takes to undo an acquire, so that no second one comes while the first is told."""

        def repeat() -> None:
            while self.is_alive() and not self.has_ended:
                assert self.ident
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(error))
                self.join(8)

        threading.Thread(target=repeat, daemon=True).start()


class Driver:
    def __init__(self) -> None:
        self.client = Client()
        self.blocks: dict[str, Block] = {}
        self.held: list[Lock] = []

    def acquire(self, command: Command) -> None:
        self.blocks[command["id"]] = Block(self.client, command)

    campaign = observe = acquire

    def release(self, command: Command) -> None:
        self.blocks[command["id"]].how = "release"

    def boom(self, command: Command) -> None:
        self.blocks[command["id"]].how = command.get("how", "throw")

    def cancel(self, command: Command) -> None:
        self.blocks[command["id"]].interrupt(Cancelled)

    def interrupt(self, command: Command) -> None:
        self.blocks[command["id"]].interrupt(KeyboardInterrupt)

    def check(self, command: Command) -> None:
        try:
            emit("ok", command, token=next(lock.check() for lock in self.blocks[command["id"]].locks))
        except fencepost.LeaseLost:
            emit("notheld", command)

    def block(self, command: Command) -> None:
        time.sleep(command["ms"] / 1000)
        emit("ok", command)

    def slow_callback(self, command: Command) -> None:
        for lock in self.blocks[command["id"]].locks:
            lock.on_lost(lambda loss: time.sleep(command["ms"] / 1000))
        emit("ok", command)

    def hold(self, command: Command) -> None:
        def take(name: str) -> Lock | None:
            try:
                return self.client.lock(name, ttl=seconds(command, "ttl")).acquire()
            except fencepost.FencepostError as error:
                print(error, file=sys.stderr)
                return None

        with ThreadPoolExecutor(max_workers=64) as pool:
            locks = list(pool.map(take, command["names"]))
        self.held += [lock for lock in locks if lock]
        emit("held", command, count=sum(lock is not None for lock in locks), failed=locks.count(None))

    def drop_all(self, command: Command) -> None:
        locks, self.held = self.held, []
        for lock in locks:
            lock.release()
        emit("ok", command, count=len(locks))

    def fork(self, command: Command) -> None:
        outcome, end = os.pipe()
        taken = self.client.lock(command["name"], wait=5) if command.get("when") == "inside" else None
        lock = taken.__enter__() if taken else None
        if os.fork() == 0:
            try:
                if taken and lock:
                    taken.__exit__(None, None, None)
                self.client.lock("of-a-child").acquire()
                os.write(end, b"acquired")
            except fencepost.ForkedProcess:
                os.write(end, b"refused")
            except BaseException as error:
                os.write(end, repr(error).encode())
            os._exit(0)
        os.close(end)
        child = os.read(outcome, 1000).decode()
        os.wait()
        if taken and lock:
            is_held = self.client.check_token(command["name"], lock.token)
            taken.__exit__(None, None, None)
            child = child if is_held else "released its parent's lock"
        emit("forked", command, child=child)

    def once(self, command: Command) -> None:
        self.client.once(command["name"], at_least=command["at_least"] / 1000)(lambda: None)()
        emit("ok", command)

    def churn(self, command: Command) -> None:
        for number in range(command["count"]):
            client = Client()
            client.lock(f"churn-{number}").acquire().release()
            if number % 2:
                client.close()
        emit("ok", command)

    def bench(self, command: Command) -> None:
        channel = grpc.insecure_channel(os.environ["FENCEPOST_ADDR"])
        stub = LockServiceStub(channel)
        end = time.monotonic() + command["ms"] / 1000

        def bare(name: str) -> None:
            lease = stub.Acquire(pb.AcquireRequest(namespace="default", name=name, owner="bench")).lease
            stub.Release(pb.ReleaseRequest(lease_id=lease.lease_id))

        def kept(name: str) -> None:
            with self.client.lock(name):
                pass

        def pairs(number: int) -> int:
            pair: Callable[[str], None] = bare if command["bare"] else kept
            count = 0
            while time.monotonic() < end:
                pair(f"bench-{number}")
                count += 1
            return count

        with ThreadPoolExecutor(max_workers=command["locks"]) as pool:
            emit("bench", command, pairs=sum(pool.map(pairs, range(command["locks"]))), ms=command["ms"])
        channel.close()

    def close(self, command: Command) -> None:
        try:
            self.client.close()
        except fencepost.NotReleased as error:
            print(error, file=sys.stderr)
        emit("closed", command)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s")
    can = ["interrupt", "fork", "block", "slow_callback", "hold", "campaign", "observe", "churn", "bench", "reentrant"]
    can += ["once", "final_tls", "token_rotation", "early_loss", "due_renewals", "resume"]
    emit("hello", {}, language="python", can=can, boom=["throw", "exit"])
    driver: Driver | None = None
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "exit":
            return
        driver = driver or Driver()
        handler = getattr(driver, command["op"], None)
        if not handler:
            emit("unsupported", command)
        elif command["op"] in ("acquire", "campaign", "observe", "release", "boom", "cancel", "interrupt", "check", "fork"):
            handler(command)
        else:
            threading.Thread(target=handler, args=(command,), daemon=True).start()


if __name__ == "__main__":
    main()
