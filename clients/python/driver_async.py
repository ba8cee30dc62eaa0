"""The driver of the scenarios over the asyncio client."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any

import grpc.aio

import fencepost
from driver import Boom, Command, emit, failed, request, seconds
from fencepost import AsyncClient, AsyncLock
from fencepost.v1 import lock_pb2 as pb
from fencepost.v1.lock_pb2_grpc import LockServiceStub


class Driver:
    def __init__(self) -> None:
        self.client = AsyncClient()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.locks: dict[str, list[AsyncLock]] = {}
        self.ends: dict[str, asyncio.Future[str]] = {}
        self.held: list[AsyncLock] = []

    async def acquire(self, command: Command) -> None:
        self.ends[command["id"]] = asyncio.get_running_loop().create_future()
        self.tasks[command["id"]] = asyncio.create_task(self.stay(command))
        await asyncio.sleep(0)  # A task that is cancelled before it runs says nothing.

    campaign = observe = acquire

    async def stay(self, command: Command) -> None:
        try:
            if command["op"] == "observe":
                async for leader in self.client.election(command["name"]).observe():
                    token, value = (leader.fencing_token, leader.value) if leader else (None, "")
                    emit("leader", command, token=token, value=value)
            async with request(self.client, command) as held:
                locks = self.locks[command["id"]] = held if isinstance(held, list) else [held]
                for lock in locks:
                    lock.on_lost(lambda loss: emit("lost", command, cause=loss.cause))
                emit("granted", command, token=locks[0].token, tokens=[lock.token for lock in locks])
                if await self.ends[command["id"]] == "throw":
                    raise Boom("boom")
            emit("released", command)
        except asyncio.CancelledError:
            emit("failed", command, kind="cancelled", reason="", message="")
        except Exception as error:
            failed(command, error)

    async def release(self, command: Command) -> None:
        self.ends[command["id"]].set_result("release")

    async def boom(self, command: Command) -> None:
        self.ends[command["id"]].set_result(command.get("how", "throw"))

    async def cancel(self, command: Command) -> None:
        self.tasks[command["id"]].cancel()

    async def check(self, command: Command) -> None:
        try:
            emit("ok", command, token=next(lock.check() for lock in self.locks[command["id"]]))
        except fencepost.LeaseLost:
            emit("notheld", command)

    async def block(self, command: Command) -> None:
        time.sleep(command["ms"] / 1000)  # noqa: ASYNC251
        emit("ok", command)

    async def slow_callback(self, command: Command) -> None:
        for lock in self.locks[command["id"]]:
            lock.on_lost(lambda loss: asyncio.sleep(command["ms"] / 1000))
        emit("ok", command)

    async def hold(self, command: Command) -> None:
        requests = [self.client.lock(name, ttl=seconds(command, "ttl")) for name in command["names"]]
        outcomes = await asyncio.gather(*(one.acquire() for one in requests), return_exceptions=True)
        locks = [outcome for outcome in outcomes if isinstance(outcome, AsyncLock)]
        for error in set(map(str, outcomes[: len(outcomes) - len(locks)])):
            print(error, file=sys.stderr)
        self.held += locks
        emit("held", command, count=len(locks), failed=len(outcomes) - len(locks))

    async def drop_all(self, command: Command) -> None:
        locks, self.held = self.held, []
        await asyncio.gather(*(lock.release() for lock in locks))
        emit("ok", command, count=len(locks))

    async def fork(self, command: Command) -> None:
        lock = await self.client.lock(command["name"], wait=5).acquire()
        outcome, end = os.pipe()
        if os.fork() == 0:
            try:
                # The loop of the parent does not run here.
                for coroutine in (lock.release(), self.client.lock("of-a-child").acquire()):
                    with suppress(StopIteration):
                        coroutine.send(None)
                os.write(end, b"acquired")
            except fencepost.ForkedProcess:
                os.write(end, b"refused")
            except BaseException as error:
                os.write(end, repr(error).encode())
            os._exit(0)
        os.close(end)
        child = (await asyncio.to_thread(os.read, outcome, 1000)).decode()
        is_held = await self.client.check_token(command["name"], lock.token)
        await lock.release()
        emit("forked", command, child=child if is_held else "released its parent's lock")

    async def once(self, command: Command) -> None:
        await self.client.once(command["name"], at_least=command["at_least"] / 1000)(partial(asyncio.sleep, 0))()
        emit("ok", command)

    async def churn(self, command: Command) -> None:
        for number in range(command["count"]):
            client = AsyncClient()
            await (await client.lock(f"churn-{number}").acquire()).release()
            if number % 2:
                await client.close()
        emit("ok", command)

    async def bench(self, command: Command) -> None:
        channel = grpc.aio.insecure_channel(os.environ["FENCEPOST_ADDR"])
        stub: Any = LockServiceStub(channel)
        end = time.monotonic() + command["ms"] / 1000

        async def bare(name: str) -> None:
            lease = (await stub.Acquire(pb.AcquireRequest(namespace="default", name=name, owner="bench"))).lease
            await stub.Release(pb.ReleaseRequest(lease_id=lease.lease_id))

        async def kept(name: str) -> None:
            async with self.client.lock(name):
                pass

        async def pairs(number: int) -> int:
            count = 0
            while time.monotonic() < end:
                await (bare if command["bare"] else kept)(f"bench-{number}")
                count += 1
            return count

        emit("bench", command, pairs=sum(await asyncio.gather(*map(pairs, range(command["locks"])))), ms=command["ms"])
        await channel.close()

    async def close(self, command: Command) -> None:
        try:
            await self.client.close()
        except fencepost.NotReleased as error:
            print(error, file=sys.stderr)
        emit("closed", command)


async def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s")
    can = ["fork", "block", "slow_callback", "hold", "campaign", "observe", "churn", "bench", "reentrant"]
    can += ["once", "final_tls", "token_rotation", "early_loss", "due_renewals", "resume"]
    emit("hello", {}, language="python-async", can=can, boom=["throw"])
    driver: Driver | None = None
    lines = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    tasks = set[asyncio.Task[None]]()
    while (line := await lines.readline()) and (command := json.loads(line))["op"] != "exit":
        driver = driver or Driver()
        handler = getattr(driver, command["op"], None)
        if not handler:
            emit("unsupported", command)
            continue
        if handler == driver.acquire:
            await handler(command)
            continue
        task = asyncio.create_task(handler(command))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    asyncio.run(main())
