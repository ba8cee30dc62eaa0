"""Locks with fencing tokens from a Fencepost server, for threads and for asyncio.

    with Client("https://a:50051,https://b:50051").lock("reports", wait=30) as lock:
        for part in parts:
            save(part, token=lock.check())

`Client` blocks, and `AsyncClient` is for asyncio; each holds its locks by leases that it renews. `fencepost.testing` starts
a server for tests, and `fencepost.v1` has the messages of the API.
"""

from ._clock import FOREVER, Time
from ._held import HeldLock
from .aio import AsyncClient, AsyncElection, AsyncLeadership, AsyncLock, AsyncLockRequest
from .client import Client
from .election import Election, Leadership
from .errors import (
    ClientClosed,
    FencepostError,
    ForkedProcess,
    InvalidRequest,
    LeaseLost,
    LockHeld,
    NotReleased,
    Overloaded,
    PermissionDenied,
    Superseded,
    Unauthenticated,
    Unavailable,
    WaitTimeout,
)
from .lock import Lock, LockRequest
from .v1.election_pb2 import Leader
from .v1.lock_pb2 import LockChange, LockState, LockSummary

__all__ = [
    "FOREVER",
    "AsyncClient",
    "AsyncElection",
    "AsyncLeadership",
    "AsyncLock",
    "AsyncLockRequest",
    "Client",
    "ClientClosed",
    "Election",
    "FencepostError",
    "ForkedProcess",
    "HeldLock",
    "InvalidRequest",
    "Leader",
    "Leadership",
    "LeaseLost",
    "Lock",
    "LockChange",
    "LockHeld",
    "LockRequest",
    "LockState",
    "LockSummary",
    "NotReleased",
    "Overloaded",
    "PermissionDenied",
    "Superseded",
    "Time",
    "Unauthenticated",
    "Unavailable",
    "WaitTimeout",
]
