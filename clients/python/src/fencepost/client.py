"""The client for threads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any, ParamSpec, TypeVar

from ._clock import Time
from ._requests import BaseClient, check_job, check_result, message
from ._threads import iterate, notify, run
from .election import Election
from .errors import LockHeld
from .lock import Lock, LockRequest
from .v1.lock_pb2 import LockChange, LockState, LockSummary

P = ParamSpec("P")
T = TypeVar("T")


class Client(BaseClient[LockRequest[Lock], LockRequest[list[Lock]]]):
    """A client of Fencepost for threads; may be used by any number of them.

    `addresses` is a list, or a text with commas, of `host:port`, `https://host:port` and `unix:/path`. The client uses
    one server at a time, and goes on at the next one when that does not answer. What is not given is taken from the
    environment: FENCEPOST_ADDR, FENCEPOST_NAMESPACE, FENCEPOST_OWNER, FENCEPOST_CA_FILE, FENCEPOST_CERT_FILE,
    FENCEPOST_KEY_FILE and FENCEPOST_BEARER_FILE. The files are read again when they change. `owner` is a label for
    operators; by default the name of the host and the number of the process.

    `token` is a bearer token, or a function that returns one, which a thread calls for each new connection.

    All clients of a process share one thread, which begins with the first call, so that an interrupt such as Ctrl-C leaves
    the client whole at any moment. Nothing is sent before the first call. A child process that was forked cannot use a
    client that its parent has used: its calls raise ForkedProcess.

    Raises ValueError for an argument that cannot be used, OSError for a file that cannot be read, and RuntimeError in a
    process whose threads gevent or eventlet have replaced.
    """

    _kinds = staticmethod(notify), Lock, LockRequest

    def once(
        self, name: str, *, at_least: Time = 0, ttl: Time | None = None
    ) -> Callable[[Callable[P, T]], Callable[P, T | None]]:
        """A decorator for a job that several machines start at the same time: the first one runs it, and the others return
        None at once.

        The lock stays held for `at_least` (seconds or a timedelta) after its grant, also if the job ends sooner or its
        process exits, so that a machine whose clock is late does not run it again. Raises TypeError for a job that is no
        plain function, and InvalidRequest before the job for a time beyond the TTLs of the namespace.
        """
        request = self._ask(message(name, ttl), None, at_least=at_least)

        def decorate(job: Callable[P, T]) -> Callable[P, T | None]:
            check_job(job, is_async=False)

            @functools.wraps(job)
            def once(*args: P.args, **kwargs: P.kwargs) -> T | None:
                with ExitStack() as held:
                    try:
                        held.enter_context(request)
                    except LockHeld:
                        return None
                    result = job(*args, **kwargs)
                    check_result(result)
                    return result

            return once

        return decorate

    def election(self, name: str) -> Election:
        """An election: the exclusive lock of this name, whose holder leads."""
        return Election(self._core, name)

    def get(self, name: str) -> LockState:
        """Who holds a lock and who waits for it. Raises Unavailable and PermissionDenied."""
        return run(self._core, self._core.get, name)

    def watch(self, name: str) -> Generator[LockState | LockChange, None, None]:
        """The state of a lock, then each change, without an end. After a gap, such as a restart of the server, a state
        follows again. Raises PermissionDenied and ClientClosed."""
        return iterate(self._core, self._core.watch(name))

    def check_token(self, name: str, token: int) -> bool:
        """Asks the server whether a fencing token holds a lock at this moment. Raises Unavailable, PermissionDenied."""
        return run(self._core, self._core.check_token, name, token)

    def force_release(self, name: str, token: int) -> None:
        """Takes a lock from the holder with this token. Raises LeaseLost if it does not hold it, and PermissionDenied."""
        run(self._core, self._core.force_release, name, token)

    def close(self) -> None:
        """Releases all locks of this client, ends its waits (which raise ClientClosed) and closes its connections, within
        5 s. A second call does nothing. Raises NotReleased if a release was not confirmed."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        session = self._core.session
        if session.loop:
            run(self._core, lambda: self._core.leave(self._core.close(), error), cancels=False)
        session.is_closing = True

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._close(error)

    def list(self, prefix: str = "") -> Generator[LockSummary, None, None]:
        """The locks in use whose names begin so, by name; not a snapshot. Raises Unavailable and PermissionDenied."""
        return iterate(self._core, self._core.locks(prefix))
