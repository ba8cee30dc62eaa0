"""How locks, waits and renewals end when something else goes wrong."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import until

from fencepost import AsyncClient, Client
from fencepost.testing import Server


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


def test_an_interrupted_release_of_several_releases_the_others(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, begun = client._core._release, list[Any]()

    async def interrupted(lock: Any, limit: float) -> None:
        begun.append(lock)
        if len(begun) == 1:
            raise KeyboardInterrupt
        await release(lock, limit)

    monkeypatch.setattr(client._core, "_release", interrupted)
    names = [f"{name}-{number}" for number in range(4)]
    with pytest.raises(KeyboardInterrupt), client.lock_all(names, ttl=300):
        pass
    until(lambda: not any(client.get(one).holder_count for one in names))
    assert client._core.keeper.held() == []
