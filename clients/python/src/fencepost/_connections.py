"""The connections to the servers: one for calls and renewals, others for waits, each a channel of its own.

A silent connection is replaced by a new one, to the next address. Waits have connections of their own, because proxies
limit how many calls a connection has at once, and a Release must not queue behind those that wait for it.
"""

from __future__ import annotations

import math
import os
import threading
from typing import Any

from ._runtime import Runtime
from ._settings import Settings
from ._threads import log
from .errors import ClientClosed, ForkedProcess
from .v1.election_pb2_grpc import ElectionServiceStub
from .v1.lock_pb2_grpc import LockServiceStub

# How many waits share a connection. nginx and Envoy allow 100 to 128 calls at once.
_WAITS = 100
_OPTIONS: list[tuple[str, Any]] = [
    # Otherwise channels to one address share a connection, and a new channel is no new connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),
]
# The authority that gRPC makes of a path is none that HTTP/2 servers accept.
_UNIX_OPTIONS = [*_OPTIONS, ("grpc.default_authority", "localhost")]


class Connection:
    """A channel to a server, with the services on it."""

    def __init__(self, settings: Settings, index: int, runtime: Runtime) -> None:
        self.index, self.waits, self.is_closed = index, 0, False
        # When the server has last answered a call.
        self.answered = -math.inf
        # Calls that `close` cancels itself: with grpcio 1.62, an asyncio channel does not find them all.
        self.streams: set[Any] = set()
        self.target, is_encrypted = settings.addresses[index]
        if is_encrypted:
            self.channel = runtime.grpc.secure_channel(self.target, settings.tls(), _OPTIONS)
        else:
            options = _UNIX_OPTIONS if self.target.startswith("unix:") else _OPTIONS
            self.channel = runtime.grpc.insecure_channel(self.target, options)
        self.locks, self.elections = LockServiceStub(self.channel), ElectionServiceStub(self.channel)

    async def close(self) -> None:
        """Ends its calls."""
        self.is_closed = True
        for call in list(self.streams):
            call.cancel()
        if closing := self.channel.close():
            await closing


class Connections:
    """See the module. Several threads may use it at once."""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        self.settings, self._runtime = settings, runtime
        self._index = 0
        # None is the connection for calls while there is none.
        self._calls: Connection | None = None
        self._waits: list[Connection] = []
        self._mutex, self._pid = threading.Lock(), os.getpid()
        self.is_closing = self._is_closed = False

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child of the client's: nothing of it works here, not even a mutex."""
        return os.getpid() != self._pid

    def check(self, is_closed: bool = False) -> None:
        """Raises ForkedProcess, or ClientClosed."""
        if self.is_forked:
            raise ForkedProcess("FORKED", "this client was made before the fork: make one in the child process")
        if is_closed:
            raise ClientClosed("CLOSED", "the client is closed")

    def current(self) -> Connection:
        """The connection for calls and renewals. Raises ForkedProcess or ClientClosed."""
        self.check(self._is_closed)
        with self._mutex:
            self._calls = self._calls or Connection(self.settings, self._index, self._runtime)
            return self._calls

    def enter_wait(self) -> Connection:
        """A connection with room for one more wait, until `leave_wait`. Raises ForkedProcess or ClientClosed."""
        self.check(self.is_closing)
        with self._mutex:
            connection = next((one for one in self._waits if one.waits < _WAITS), None)
            if not connection:
                connection = Connection(self.settings, self._index, self._runtime)
                self._waits.append(connection)
            connection.waits += 1
            return connection

    async def leave_wait(self, connection: Connection) -> None:
        """Ends a wait. The last one closes a connection that was replaced."""
        with self._mutex:
            connection.waits -= 1
            is_over = connection.waits == 0 and connection not in self._waits
        if is_over:
            await connection.close()

    async def replace(self, failed: Connection, why: object) -> None:
        """Goes on over a new connection to the next address, once for all that saw this one fail."""
        with self._mutex:
            if failed in self._waits:
                self._waits.remove(failed)  # Its other waits go on as long as they can.
            elif failed is self._calls:
                self._calls = None
            else:
                return
            if failed.index == self._index:
                self._index = (self._index + 1) % len(self.settings.addresses)
            following = self.settings.addresses[self._index].target
        if not failed.waits:
            await failed.close()
        log.info("the connection to %s failed, and the next one is to %s: %s", failed.target, following, why)

    async def end_waits(self) -> None:
        """Fails the waits, and all later ones."""
        with self._mutex:
            self.is_closing, waits, self._waits = True, self._waits, []
        for connection in waits:
            await connection.close()

    async def close(self) -> None:
        """Fails all later calls."""
        with self._mutex:
            self._is_closed, last = True, self._calls
        if last:
            await last.close()
