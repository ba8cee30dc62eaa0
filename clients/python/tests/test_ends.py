"""How locks, waits and renewals end when something else goes wrong."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

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
