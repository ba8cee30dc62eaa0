"""The resource's half of fencing: a resource that refuses a holder whose lock has a newer holder.

No lease stops a holder that is paused and writes too late. The resource keeps the highest token of each lock, and each
holder raises it *before the first read* of its work, in the step that also commits the work:

    with client.lock("reports", wait=30) as lock:
        with fence.transaction(database, lock) as cursor:
            cursor.execute("SELECT total FROM reports")
            ...

A holder that was paused after its read, and whose lock another one took meanwhile, finds a higher token and gets
`StaleToken`. To compare only in the condition of the write is not enough: the paused holder may write before the newer one
does, which then overwrites it with what it computed from the older state.

This is for exclusive locks. Holders of a shared lock or of a semaphore hold at the same time, so the one with the highest
token would refuse the others.
"""

from ._errors import InvalidToken, StaleToken
from ._file import file
from ._http import ENVIRON, HEADER, AsgiFence, WsgiFence, headers
from ._redis import RedisFence
from ._s3 import S3Object
from ._sql import MYSQL, POSTGRESQL, SQLITE, Dialect, raise_token, transaction

__all__ = [
    "ENVIRON",
    "HEADER",
    "MYSQL",
    "POSTGRESQL",
    "SQLITE",
    "AsgiFence",
    "Dialect",
    "InvalidToken",
    "RedisFence",
    "S3Object",
    "StaleToken",
    "WsgiFence",
    "file",
    "headers",
    "raise_token",
    "transaction",
]
