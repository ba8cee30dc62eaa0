"""What both clients ask for in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

from ._clock import Time, duration, seconds
from ._core import Core
from ._held import HeldLock
from ._settings import File, Settings
from .v1 import lock_pb2 as pb

One = TypeVar("One")
All = TypeVar("All")


class Request:
    """A request for locks, which a block or a caller takes, any number of times."""

    def __init__(
        self,
        core: Core[Any],
        message: Any,
        wait: Time | None,
        reentrant: bool = False,
        at_least: Time = 0,
        held: type[HeldLock] | None = None,
    ) -> None:
        self._core, self._held, self._message, self._wait = core, held, message, seconds(wait or 0, "wait")
        self._is_reentrant, self._at_least = reentrant, seconds(at_least, "at_least")
        # The blocks that are entered, each with its thread or task.
        self._blocks: list[tuple[Any, Any]] = []

    async def _acquire(self) -> Any:
        locks = await self._core.acquire(self._message, self._wait, self._is_reentrant, self._held)
        return locks[0] if isinstance(self._message, pb.AcquireRequest) else locks

    async def _enter(self, block: Callable[[list[HeldLock]], Any] = list) -> Any:
        held = await self._acquire()
        locks = held if isinstance(held, list) else [held]
        self._blocks.append((self._core.runtime.current(), block(locks)))
        return held

    async def _exit(self, error: BaseException | None) -> None:
        await self._core.leave(self._entered(), self._at_least, error)

    async def _undo(self, held: Any) -> None:
        """Gives back what a thread was granted that was interrupted in this moment."""
        await self._core.leave(held if isinstance(held, list) else [held], 0, GeneratorExit())

    async def _leave(self, held: Any) -> None:
        """The same of a block."""
        locks = held if isinstance(held, list) else [held]
        with suppress(StopIteration, ValueError):
            self._blocks.remove(next(entry for entry in self._blocks if entry[1] == locks))
        await self._undo(held)

    def _entered(self) -> Any:
        """The block that this thread or task has entered last. Without one it ends one of another, as in a fixture whose
        end runs in a task of its own."""
        current = self._core.runtime.current()
        while True:
            own = [entry for entry in list(self._blocks) if entry[0] == current]
            entry = (own or self._blocks)[-1]
            with suppress(ValueError):  # Another thread was faster.
                self._blocks.remove(entry)
                return entry[1]


class BaseClient(Generic[One, All]):
    """The arguments of a client, and its requests: `One` for a lock, and `All` for several."""

    # How its coroutines run, and the classes of its locks and requests.
    _kinds: tuple[Any, Any, Any]

    def __init__(
        self,
        addresses: str | Sequence[str] | None = None,
        *,
        namespace: str | None = None,
        owner: str | None = None,
        ca_file: File = None,
        cert_file: File = None,
        key_file: File = None,
        bearer_file: File = None,
    ) -> None:
        files = {"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file, "bearer_file": bearer_file}
        settings = Settings(addresses, namespace=namespace, owner=owner, **files)
        runtime, lock, self._request = self._kinds
        self._core: Core[Any] = Core(settings, runtime(), lock)

    def lock(
        self,
        name: str,
        *,
        wait: Time | None = None,
        ttl: Time | None = None,
        metadata: Mapping[str, str] | None = None,
        reentrant: bool = False,
    ) -> One:
        """A request for a lock, to hold it in a `with` block or to `acquire` it.

        `wait` (seconds or a timedelta): how long to wait in the lock's queue, `FOREVER` for no limit; without it, a lock
        that is held raises LockHeld at once. `ttl` (seconds or a timedelta): how long the lock stays held if this process
        dies; without it, the default of the namespace. `metadata` is shown to operators. With `reentrant`, a thread or
        task that holds the lock takes it again without asking.
        """
        return cast(One, self._ask(message(name, ttl, metadata), wait, reentrant))

    def write(self, name: str, *, wait: Time | None = None, ttl: Time | None = None) -> One:
        """A request to hold a lock alone, as `lock`."""
        return self.lock(name, wait=wait, ttl=ttl)

    def read(self, name: str, *, wait: Time | None = None, ttl: Time | None = None) -> One:
        """A request to hold a lock together with other readers. A writer that waits comes before later readers."""
        return cast(One, self._ask(message(name, ttl, mode=pb.Mode(shared=pb.Mode.Shared())), wait))

    def semaphore(
        self, name: str, *, limit: int, permits: int = 1, wait: Time | None = None, ttl: Time | None = None
    ) -> One:
        """A request for some permits of a semaphore of `limit` permits, at most 1,000,000."""
        mode = pb.Mode(semaphore=pb.Mode.Semaphore(permits=permits, limit=limit))
        return cast(One, self._ask(message(name, ttl, mode=mode), wait))

    def lock_all(self, names: Sequence[str], *, wait: Time | None = None, ttl: Time | None = None) -> All:
        """A request for 2 to 64 locks, all or none, in the order of `names`. Two such requests never wait for each other
        in a circle."""
        locks = [pb.LockToAcquire(name=name) for name in names]
        return cast(All, self._ask(pb.AcquireAllRequest(locks=locks, ttl=_ttl(ttl)), wait))

    def _ask(self, message: Any, wait: Time | None, reentrant: bool = False, at_least: Time = 0) -> Any:
        return self._request(self._core, message, wait, reentrant, at_least)


def message(name: str, ttl: Time | None, metadata: Mapping[str, str] | None = None, mode: pb.Mode | None = None) -> Any:
    """A message that asks for one lock."""
    return pb.AcquireRequest(name=name, ttl=_ttl(ttl), metadata=metadata, mode=mode)


def _ttl(ttl: Time | None) -> Any:
    return None if ttl is None else duration(seconds(ttl, "ttl"))
