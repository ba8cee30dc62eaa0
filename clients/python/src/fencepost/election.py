"""Elections for threads: an election is the exclusive lock of its name, and its holder leads."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from . import _tracing
from ._clock import FOREVER, Time
from ._core import Core
from ._requests import message
from ._threads import iterate, run
from .errors import LeaseLost
from .lock import Lock, LockRequest
from .v1.election_pb2 import Leader

T = TypeVar("T")


class Leadership(Lock):
    """The lock of an election while it is held."""

    def proclaim(self, value: str) -> None:
        """Replaces the value that observers see: at most 4096 bytes. Raises LeaseLost, InvalidRequest, Unavailable."""
        run(self._core, self._core.proclaim, self, value)


class Election:
    """An election, whose candidates are the owners of their clients."""

    def __init__(self, core: Core, name: str) -> None:
        self._core, self.name = core, name

    def campaign(self, value: str = "", *, wait: Time | None = None, ttl: Time | None = None) -> LockRequest[Leadership]:
        """A request to lead: in its `with` block this client leads. `value` is what observers see, such as an address.

        `wait` and `ttl` are seconds or a timedelta, as for `Client.lock`.
        """
        return LockRequest(self._core, message(self.name, ttl, {"value": value}), wait, held=Leadership)

    def lead(
        self,
        elected: Callable[[Leadership], T],
        deposed: Callable[[LeaseLost], object] | None = None,
        *,
        value: str = "",
        ttl: Time | None = None,
    ) -> T:
        """Campaigns until this client leads, and calls `elected` in this thread; returns what it returns, and resigns.

        `elected` must return, or raise, soon after the leadership was lost, which `Leadership.check` and `wait_lost`
        show. `deposed` is called then, and the next campaign begins.
        """
        while True:
            try:
                with self.campaign(value, wait=FOREVER, ttl=ttl) as leadership:
                    return elected(leadership)
            except LeaseLost as loss:
                if deposed:
                    _tracing.call(deposed, loss)

    def leader(self) -> Leader | None:
        """Who leads now: its `candidate`, `fencing_token` and `value`. Raises Unavailable."""
        return run(self._core, self._core.leader, self.name)

    def observe(self) -> Generator[Leader | None, None, None]:
        """The present leader, or None if nobody leads, then each change, without an end.

        It goes on when servers restart, and never goes back to an older leader. Raises PermissionDenied and ClientClosed.
        Leaders of a moment may be left out.
        """
        return iterate(self._core, self._core.observe(self.name))
