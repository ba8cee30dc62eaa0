from __future__ import annotations

import itertools
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import fencepost
from fencepost.testing import Server, server

_NAMES = itertools.count()


@pytest.fixture(scope="session")
def running() -> Iterator[Server]:
    with server() as running:
        yield running


@pytest.fixture
def client(running: Server) -> Iterator[fencepost.Client]:
    with fencepost.Client(running.address) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"lock-{next(_NAMES)}"


def until(is_so: Callable[[], Any], timeout: float = 10) -> None:
    end = time.monotonic() + timeout
    while not is_so():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def force(running: Server, lock: fencepost.HeldLock) -> None:
    """Takes a lock away, as an operator does."""
    command = [
        os.environ["FENCEPOST_BIN"],
        "force-release",
        f"default/{lock.name}",
        str(lock.token),
        "--addr",
        running.address,
    ]
    subprocess.run(command, check=True, capture_output=True)


class Proxy:
    """A way to a server, whose connections can be made silent or be cut."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._server = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: list[tuple[socket.socket, socket.socket]] = []
        self._silent: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connections(self) -> int:
        return len(self._connections)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                self._connections.append((near, far))
                for source, target in (near, far), (far, near):
                    threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if source not in self._silent:
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def silence(self) -> None:
        """The present connections carry nothing any more; new ones work."""
        self._silent.update(itertools.chain(*self._connections))

    def cut(self) -> None:
        for end in itertools.chain(*self._connections):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def refuse(self) -> None:
        """There are no new connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def proxy(running: Server) -> Iterator[Proxy]:
    proxy = Proxy(running.address)
    yield proxy
    proxy.refuse()
    proxy.cut()
