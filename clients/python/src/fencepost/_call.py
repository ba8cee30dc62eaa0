"""The calls of a client, which threads of gRPC run. Not by `grpc.aio`: with it, forked children of a process crash."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import grpc

from . import errors
from ._settings import in_thread, metadata
from .errors import FencepostError, Unavailable
from .v1 import lock_pb2 as pb

# A message has at most so many bytes, of the 16 KiB or more that a server takes, unless one command has more.
_MESSAGE_BYTES = 15 << 10


class Call:
    """A call of Session. `received` gets its messages in the event loop, and at last its error."""

    def __init__(self, channel: grpc.Channel, token: str | None, received: Callable[[Any], None]) -> None:
        self._loop, self._received = asyncio.get_running_loop(), received
        self._commands: SimpleQueue[bytes | None] = SimpleQueue()
        method: Any = channel.stream_stream(
            "/fencepost.v1.LockService/Session", response_deserializer=pb.SessionResponse.FromString
        )
        self._call: Any = method(_gathered(self._commands), metadata=metadata(token))
        threading.Thread(target=self._read, name="fencepost-stream", daemon=True).start()

    def send(self, command: pb.SessionCommand) -> None:
        """Sends a command. Those that gather share a message: the bytes of several are those of one with all."""
        self._commands.put(pb.SessionRequest(commands=[command]).SerializeToString())

    def end(self) -> None:
        """Breaks the call off: were its commands to end first, a server would keep no place of it."""
        self._call.cancel()
        self._commands.put(None)

    def _read(self) -> None:
        ended: FencepostError = Unavailable("UNAVAILABLE", "the stream has ended")
        with suppress(RuntimeError):  # The event loop is closed.
            try:
                for message in self._call:
                    self._loop.call_soon_threadsafe(self._received, message)
            except grpc.RpcError as error:
                ended = errors.of_call(error)
            self._loop.call_soon_threadsafe(self._received, ended)


def _gathered(commands: SimpleQueue[bytes | None]) -> Generator[bytes, None, None]:
    following = commands.get()
    while following is not None:
        message, size, following = [following], len(following), None
        with suppress(Empty):
            while (following := commands.get_nowait()) is not None and size + len(following) <= _MESSAGE_BYTES:
                message.append(following)
                size += len(following)
                following = b""
            if following is None:
                yield b"".join(message)
                return
        yield b"".join(message)
        following = following or commands.get()


async def unary(method: Any, request: Any, token: str | None, timeout: float) -> Any:
    """The response of a call. Raises FencepostError."""
    try:
        return await in_thread(lambda: method(request, metadata=metadata(token), timeout=timeout))
    except grpc.RpcError as error:
        raise errors.of_call(error) from error
    except ValueError as error:  # The channel is closed.
        raise Unavailable("UNAVAILABLE", str(error)) from error
