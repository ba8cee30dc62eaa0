"""What can go wrong, by what a caller can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status


class FencepostError(Exception):
    """A call failed.

    `reason` is the reason of the server, such as `"INVALID_FIELD"`, or the name of the gRPC status if there is none. It is
    `"INCOMPLETE"` if an answer lacks a lease: what it grants is released.
    `details` has what the server says beside it. `retry_after` is how many seconds the server asks to wait before a
    repetition, if it does.
    """

    retry_after: float | None = None

    def __init__(self, reason: str, message: str, details: Mapping[str, str] | None = None) -> None:
        super().__init__(reason, message, details)
        self.reason, self.message, self.details = reason, message, dict(details or {})

    def __str__(self) -> str:
        """The message, and the reason in brackets."""
        return f"{self.message} ({self.reason})"


class LockHeld(FencepostError):
    """A try found the lock held, or waited for."""

    @property
    def owner(self) -> str | None:
        """Who holds it, if anybody does."""
        return self.details.get("owner")

    @property
    def remaining(self) -> timedelta | None:
        """For how long its holder's lease still lives without a renewal, if anybody holds it."""
        left = self.details.get("remaining_ttl_ms")
        return timedelta(milliseconds=int(left)) if left else None


class WaitTimeout(FencepostError, TimeoutError):
    """The lock was not granted within the wait."""


class LeaseLost(FencepostError):
    """The lease has ended, or may have: another client may hold the lock."""

    @property
    def cause(self) -> str:
        """`"expired"`, `"released"`, `"forced"`, `"unknown"`, or `"unrenewed"`: no renewal was confirmed in time."""
        return self.details.get("cause", "unknown")


class Unavailable(FencepostError, ConnectionError):
    """No server answered, or it cannot serve now. The outcome of the call is unknown; a repetition may succeed."""


class NotReleased(Unavailable):
    """A release was not confirmed: the lock may stay held until the TTL of its lease is over."""


class Overloaded(FencepostError):
    """A limit of the server, the namespace, the queue or the caller is reached. A later repetition may succeed."""


class InvalidRequest(FencepostError, ValueError):
    """The call or the configuration must change: the message names the field and its bounds."""


class Unauthenticated(FencepostError):
    """The server does not accept the credentials."""


class PermissionDenied(FencepostError):
    """No rule of the server allows the call."""


class Superseded(FencepostError):
    """Another call with the same request id has taken over this wait."""


class ClientClosed(FencepostError, RuntimeError):
    """The client was closed."""


class ForkedProcess(FencepostError, RuntimeError):
    """The client was made before a fork: the child process needs a client of its own."""


_KINDS: dict[str, type[FencepostError]] = {
    "LOCK_HELD": LockHeld,
    "WAIT_TIMEOUT": WaitTimeout,
    "LEASE_LOST": LeaseLost,
    "SUPERSEDED": Superseded,
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
    **dict.fromkeys(("INVALID_FIELD", "NAMESPACE_NOT_FOUND", "LIMIT_MISMATCH", "UNSUPPORTED"), InvalidRequest),
    **dict.fromkeys(("RESOURCE_EXHAUSTED", "QUEUE_FULL", "OVERLOADED"), Overloaded),
    **dict.fromkeys(("BACKEND_UNAVAILABLE", "NO_QUORUM", "BACKEND_QUARANTINED", "DRAINING"), Unavailable),
}
_CODES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}
# What the transport itself answers when a connection breaks, a deadline passes or a proxy has no server.
_OF_TRANSPORT = {"UNAVAILABLE", "UNKNOWN", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL"}


def of_reason(reason: str, message: str, details: Mapping[str, str] | None = None) -> FencepostError:
    """The error for a reason of a server."""
    return _KINDS.get(reason, FencepostError)(reason, message, details)


def of_status(reason: str, code: str, message: str, status: Any, cause: str = "") -> FencepostError:
    """The error for the parts of an answer. `status` has the details."""
    if not reason and code in _OF_TRANSPORT:
        return Unavailable(code, message or "no server answered")
    info, retry = ErrorInfo(), RetryInfo()
    with suppress(DecodeError):  # The reason is enough.
        for detail in (Status.FromString(status) if isinstance(status, bytes) else status).details:
            _ = detail.Unpack(info) or detail.Unpack(retry)
    failed = of_reason(reason or code, message, dict(info.metadata) | ({"cause": cause} if cause else {}))
    if retry.HasField("retry_delay"):
        failed.retry_after = retry.retry_delay.ToNanoseconds() / 1e9
    return failed


def of_call(error: Any) -> FencepostError:
    """The error for an `RpcError`: its reason is in the trailers."""
    # Those of asyncio are no mapping that dict() takes in grpcio 1.62.
    trailers = {key: value for key, value in error.trailing_metadata() or ()}  # noqa: C416
    reason, cause = trailers.get("fencepost-reason", ""), trailers.get("fencepost-cause", "")
    status = trailers.get("grpc-status-details-bin", b"")
    return of_status(reason, error.code().name, error.details() or "", status, cause)


def of_command(error: Any) -> FencepostError:
    """The error for a result of a session."""
    return of_status(error.reason, _CODES.get(error.code, "UNKNOWN"), error.message, error, error.cause)


def of_tls(message: str, target: str) -> str | None:
    """Why TLS cannot work with a server, in words, if that is why a connection failed."""
    if "WRONG_VERSION_NUMBER" in message:
        return f"{target} does not speak TLS, and its address begins with https://"
    if "CERTIFICATE_VERIFY_FAILED" in message or "ostname" in message:
        return f"the certificate of {target} is refused: {message.rpartition(':SSL routines:')[2]}"
    return None


def incomplete() -> FencepostError:
    """The error for an answer that cannot be used."""
    return FencepostError("INCOMPLETE", "the server's response lacks a required field")


def closed() -> ClientClosed:
    """The error after a close."""
    return ClientClosed("CLOSED", "the client is closed")


def is_unanswered(error: FencepostError) -> bool:
    """Whether another server may answer: this one did not, or is shutting down."""
    return isinstance(error, Unavailable) and error.reason in _OF_TRANSPORT | {"DRAINING"}


def lost(cause: str) -> LeaseLost:
    """The loss of a lease. The clock tells the cause "unrenewed", and a server the others."""
    message = "no renewal was confirmed in time" if cause == "unrenewed" else "the lease is gone"
    return LeaseLost("LEASE_LOST", f"{message}: {cause}", {"cause": cause})
