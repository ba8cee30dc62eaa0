"""The clock of leases, and times as users give them."""

from __future__ import annotations

import math
import time
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

FOREVER = math.inf
"""A wait without an end."""

Time = float | timedelta
"""A time: seconds, or a `timedelta`."""

# The first of the two that the platform has runs on while the machine is suspended: BOOTTIME on Linux, the other on macOS.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None) or getattr(time, "CLOCK_MONOTONIC", None)


def now() -> float:
    """Seconds on a clock that only goes forward."""
    return time.clock_gettime(_CLOCK) if _CLOCK else time.monotonic()


def seconds(value: Time, field: str) -> float:
    """A time in seconds. Raises ValueError for one that is negative or no number."""
    result = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not result >= 0:
        raise ValueError(f"{field} is {value!r}, and must not be negative")
    return result


def duration(value: float) -> Duration:
    """Seconds as a message, at most the longest one."""
    return Duration(seconds=int(min(value, 315_576_000_000)), nanos=int(value % 1 * 1e9) if value < 1e9 else 0)


def of(message: Duration) -> float:
    """The seconds of a message."""
    return message.seconds + message.nanos / 1e9
