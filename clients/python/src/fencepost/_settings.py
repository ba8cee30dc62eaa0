"""Where the servers are, and by which credentials: arguments, or else the environment variables of the command line."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from .errors import Unavailable

File = str | os.PathLike[str] | None
Token = str | Callable[[], str | Awaitable[str]] | None
_TCP = re.compile(r"(?:(https?)://)?((?:\[[0-9a-fA-F:.]+\]|[^\s/:\[\],]+):[0-9]{1,5})/?")
_LOCAL = re.compile(r"unix:|(localhost|\[::1\]|127\.[0-9.]+):")
# For how many seconds a server may take to show that it speaks TLS, and a function to return a token. So many calls of the
# function may hang.
_PROBE, _TOKEN, _CALLS = 2.0, 5.0, 3


class Address(NamedTuple):
    """A server."""

    target: str
    is_encrypted: bool

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises ValueError for a text of another form."""
        if text.startswith("unix:/"):
            return cls(text, False)
        if (found := _TCP.fullmatch(text)) and int(found[2].rpartition(":")[2]) < 1 << 16:
            return cls(found[2], found[1] == "https")
        raise ValueError(f"the address {text!r} is none of host:port, https://host:port and unix:/path")


class Settings:
    """The arguments of a client, checked. The files are read again, because they are replaced while it runs."""

    def __init__(self, addresses: str | Sequence[str] | None, token: Token = None, **given: File) -> None:
        def setting(name: str) -> str:
            value = given[name]
            return os.fspath(value) if value is not None else os.environ.get(f"FENCEPOST_{name.upper()}", "")

        addresses = addresses or os.environ.get("FENCEPOST_ADDR") or "127.0.0.1:50051"
        texts = addresses.split(",") if isinstance(addresses, str) else addresses
        self.addresses = [Address.parse(text.strip()) for text in texts]
        self.namespace = setting("namespace") or "default"
        self.owner = setting("owner") or f"{socket.gethostname()}-{os.getpid()}"[-256:]
        self._files = [setting("ca_file"), setting("key_file"), setting("cert_file")]
        self._bearer, self._token, self._given = "" if token else setting("bearer_file"), "", token
        self._tls: grpc.ChannelCredentials | None = None
        # The calls of a function that have not returned.
        self._asked: list[asyncio.Task[str]] = []
        if bool(self._files[1]) != bool(self._files[2]):
            raise ValueError("cert_file and key_file belong together: only one of them is given")
        for address in self.addresses:
            if any([token, self._bearer, *self._files]) and not address.is_encrypted and not _LOCAL.match(address.target):
                raise ValueError(
                    f"{address.target} is without TLS, but ca_file, cert_file, token or bearer_file is given:"
                    " begin it with https://"
                )
        if self._bearer:
            self._read()
        if any(address.is_encrypted for address in self.addresses):
            self.tls()

    def tls(self) -> grpc.ChannelCredentials:
        """What a new connection shows and trusts. Without a CA file it trusts the certificates that gRPC brings."""
        try:
            self._tls = grpc.ssl_channel_credentials(*(Path(file).read_bytes() if file else None for file in self._files))
        except OSError:
            if not self._tls:
                raise
        return self._tls

    async def token(self) -> str | None:
        """The bearer token of this moment."""
        if not callable(self._given):
            return self._given or (self._read() if self._bearer else None)
        loop = asyncio.get_running_loop()
        asked = self._asked = [one for one in self._asked if one.get_loop() is loop]
        if len(asked) < _CALLS:
            asked.append(loop.create_task(_call(self._given)))
        done, _ = await asyncio.wait(asked, timeout=_TOKEN, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise Unavailable("DEADLINE_EXCEEDED", f"the function token has returned none within {_TOKEN} s")
        asked.clear()
        return done.pop().result()

    def _read(self) -> str:
        """The token in the file. While it is being replaced, the one before stays in use."""
        try:
            self._token = Path(self._bearer).read_text().strip() or self._token
        except OSError:
            if not self._token:
                raise
        if not self._token:
            raise ValueError(f"{self._bearer} contains no bearer token")
        return self._token


def metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """What a call shows."""
    return (("authorization", f"Bearer {token}"),) if token else ()


async def _call(function: Callable[[], Any]) -> str:
    """The token of a user's function."""
    token = await in_thread(function)
    return str(await token if inspect.isawaitable(token) else token)


async def in_thread(function: Callable[[], Any]) -> Any:
    """The result of a function, for which no renewal waits, nor the end of the interpreter."""
    loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def done(value: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(value)

    def run() -> None:
        value, failed = None, None
        try:
            value = function()
        except BaseException as error:
            failed = error if isinstance(error, Exception) else RuntimeError(repr(error))
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(done, value, failed)

    threading.Thread(target=run, name="fencepost-callback", daemon=True).start()
    return await future


async def speaks_tls(target: str) -> bool:
    """Whether a server speaks TLS."""
    host, _, port = target.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        opening = asyncio.open_connection(host.strip("[]"), port, ssl=context)
        _, writer = await asyncio.wait_for(opening, _PROBE)
    except Exception:
        return False
    writer.close()
    return True
