"""Where the servers are, and by which credentials: arguments, or else the environment variables of the command line."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import grpc

from ._clock import now

File = str | os.PathLike[str] | None
_TCP = re.compile(r"(?:(https?)://)?((?:\[[0-9a-fA-F:.]+\]|[^\s/:\[\],]+):[0-9]{1,5})/?")
_LOCAL = re.compile(r"unix:|(localhost|\[::1\]|127\.[0-9.]+):")
# The age in seconds at which a bearer token is read again.
_TOKEN_AGE = 10.0


class Address(NamedTuple):
    """A server."""

    target: str
    is_encrypted: bool

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises ValueError for a text of another form."""
        if text.startswith("unix:/"):
            return cls(text, False)
        if found := _TCP.fullmatch(text):
            return cls(found[2], found[1] == "https")
        raise ValueError(f"the address {text!r} is none of host:port, https://host:port and unix:/path")


class Settings:
    """The arguments of a client, checked. The files are read again, because they are replaced while it runs."""

    def __init__(self, addresses: str | Sequence[str] | None, **given: File) -> None:
        def setting(name: str) -> str:
            value = given[name]
            return os.fspath(value) if value is not None else os.environ.get(f"FENCEPOST_{name.upper()}", "")

        addresses = addresses or os.environ.get("FENCEPOST_ADDR") or "127.0.0.1:50051"
        texts = addresses.split(",") if isinstance(addresses, str) else addresses
        self.addresses = [Address.parse(text.strip()) for text in texts]
        self.namespace = setting("namespace") or "default"
        self.owner = setting("owner") or f"{socket.gethostname()}-{os.getpid()}"[-256:]
        self._files = [setting("ca_file"), setting("key_file"), setting("cert_file")]
        self._bearer, self._token, self._read_at = setting("bearer_file"), "", -_TOKEN_AGE
        self._tls: grpc.ChannelCredentials | None = None
        if bool(self._files[1]) != bool(self._files[2]):
            raise ValueError("cert_file and key_file belong together: only one of them is given")
        for address in self.addresses:
            if any([self._bearer, *self._files]) and not address.is_encrypted and not _LOCAL.match(address.target):
                raise ValueError(
                    f"{address.target} is without TLS, but ca_file, cert_file or bearer_file is given: begin it with https://"
                )
        self.metadata()
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

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each call shows: the bearer token."""
        if self._bearer and now() - self._read_at >= _TOKEN_AGE:
            self.read_token()
        return (("authorization", f"Bearer {self._token}"),) if self._bearer else ()

    def read_token(self) -> bool:
        """Whether the file has another token now. While it is being replaced, the one before stays in use."""
        before, self._read_at = self._token, now()
        try:
            self._token = Path(self._bearer).read_text().strip() or before if self._bearer else ""
        except OSError:
            if not before:
                raise
        if self._bearer and not self._token:
            raise ValueError(f"{self._bearer} contains no bearer token")
        return self._token != before
