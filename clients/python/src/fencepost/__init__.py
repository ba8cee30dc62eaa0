"""Locks with fencing tokens from a Fencepost server, for threads and for asyncio.

    with Client("https://a:50051,https://b:50051").lock("reports", wait=30) as lock:
        for part in parts:
            save(part, token=lock.check())

`Client` blocks, and `AsyncClient` is for asyncio; each holds its locks by leases that it renews. `fencepost.testing` starts
a server for tests, and `fencepost.v1` has the messages of the API.
"""

from ._clock import FOREVER as FOREVER
from ._clock import Time as Time
from ._held import HeldLock as HeldLock
from .aio import AsyncClient as AsyncClient
from .aio import AsyncElection as AsyncElection
from .aio import AsyncLeadership as AsyncLeadership
from .aio import AsyncLock as AsyncLock
from .aio import AsyncLockRequest as AsyncLockRequest
from .client import Client as Client
from .election import Election as Election
from .election import Leadership as Leadership
from .errors import ClientClosed as ClientClosed
from .errors import FencepostError as FencepostError
from .errors import ForkedProcess as ForkedProcess
from .errors import InvalidRequest as InvalidRequest
from .errors import LeaseLost as LeaseLost
from .errors import LockHeld as LockHeld
from .errors import NotReleased as NotReleased
from .errors import Overloaded as Overloaded
from .errors import PermissionDenied as PermissionDenied
from .errors import Superseded as Superseded
from .errors import Unauthenticated as Unauthenticated
from .errors import Unavailable as Unavailable
from .errors import WaitTimeout as WaitTimeout
from .lock import Lock as Lock
from .lock import LockRequest as LockRequest
from .v1.election_pb2 import Leader as Leader
from .v1.lock_pb2 import LockChange as LockChange
from .v1.lock_pb2 import LockState as LockState
from .v1.lock_pb2 import LockSummary as LockSummary
