"""What both clients ask for in the same way."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from threading import current_thread
from typing import Any, Generic, NamedTuple, TypeVar, cast

from ._clock import Time, duration, seconds
from ._core import Core
from ._held import HeldLock
from ._settings import File, Settings, Token
from ._threads import check_threads, current
from .errors import LockHeld
from .v1 import lock_pb2 as pb

One = TypeVar("One")
All = TypeVar("All")


class _Taken(NamedTuple):
    """What a request has taken: by which thread or task, whether by a block, and the locks with what `Request` adds."""

    caller: Any
    is_block: bool
    locks: Sequence[HeldLock]
    entered: Any


class Request:
    """A request for locks, which a block or a caller takes, any number of times."""

    def __init__(
        self,
        core: Core,
        message: Any,
        wait: Time | None,
        reentrant: bool = False,
        at_least: Time = 0,
        held: type[HeldLock] | None = None,
    ) -> None:
        self._core, self._held, self._message, self._wait = core, held, message, seconds(wait or 0, "wait")
        self._is_reentrant, self._at_least = reentrant, seconds(at_least, "at_least")
        self._taken: list[_Taken] = []

    async def _acquire(self, enter: Callable[[list[HeldLock]], Any] | None = None, wait: float | None = None) -> Any:
        wait = self._wait if wait is None else wait
        locks = await self._core.acquire(self._message, wait, self._is_reentrant, self._held)
        held = locks[0] if isinstance(self._message, pb.AcquireRequest) else locks
        if self._at_least:
            try:
                await self._core.keep_at_least(locks[0], self._at_least)
            except BaseException:
                await self._undo(held)
                raise
        self._taken = [one for one in self._taken if one.is_block or not all(lock._loss for lock in one.locks)]
        self._taken.append(_Taken(current(), bool(enter), locks, enter and enter(locks)))
        return held

    async def _enter(self, block: Callable[[list[HeldLock]], Any] = list) -> Any:
        return await self._acquire(block)

    async def _acquire_or_none(self, blocking: bool) -> Any:
        try:
            return await self._acquire(wait=None if blocking else 0)
        except LockHeld:
            if blocking:
                raise
            return None

    async def _exit(self, error: BaseException | None) -> None:
        entered = self._last(is_block=True).entered
        await self._core.leave(self._core.release_all(entered, self._at_least), error)

    async def _release(self) -> None:
        await self._core.release_all(self._last(is_block=False).locks, self._at_least)

    async def _undo(self, held: Any) -> None:
        """Gives back what a thread was granted that was interrupted in this moment."""
        if held is None:
            return
        locks = held if isinstance(held, list) else [held]
        self._taken = [one for one in self._taken if list(one.locks) != locks]
        await self._core.leave(self._core.release_all(locks), GeneratorExit())

    def owned(self) -> bool:
        """Whether this thread or task holds, for certain, what it has taken with this request. Asks no server."""
        own = [one for one in self._taken if one.caller == self._current()]
        return any(all(lock.is_held for lock in one.locks) for one in own)

    def _current(self) -> Any:
        return current_thread()

    def _last(self, is_block: bool) -> _Taken:
        """What this thread or task has taken last. Without that it is of another one, as in a fixture whose end runs in a
        task of its own."""
        caller = current()
        taken = [one for one in self._taken if one.is_block == is_block]
        own = [one for one in taken if one.caller == caller]
        if not taken:
            raise RuntimeError("it is not acquired")
        last = (own or taken)[-1]
        self._taken.remove(last)
        return last


def check_job(job: Callable[..., Any], *, is_async: bool) -> None:
    """Raises TypeError for a function whose call does not run the job, so that it would run without the lock."""
    is_other = inspect.isgeneratorfunction(job) or inspect.isasyncgenfunction(job) or inspect.isclass(job)
    is_other = is_other or isinstance(job, (staticmethod, classmethod, property))
    if is_other or (not is_async and inspect.iscoroutinefunction(job)):
        raise TypeError(f"once takes a function that runs the job (AsyncClient.once a coroutine function too), not {job!r}")


def check_result(result: Any) -> None:
    """The same for what a job has returned."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(f"once takes a function that runs the job, and it has returned {result!r}, which would run later")


class BaseClient(Generic[One, All]):
    """The arguments of a client, and its requests: `One` for a lock, and `All` for several."""

    # How it calls users' callbacks, and the classes of its locks and requests.
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
        token: Token = None,
    ) -> None:
        check_threads()
        files = {"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file, "bearer_file": bearer_file}
        settings = Settings(addresses, token, namespace=namespace, owner=owner, **files)
        notify, lock, self._request = self._kinds
        self._core = Core(settings, lock, notify)

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
        """A request for 1 to 64 locks, all or none, in the order of `names`. Two such requests never wait for each other
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
