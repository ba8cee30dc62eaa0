"""A table with a row for each lock, in the database of the work."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ._errors import Held, StaleToken, name_and_token


class Cursor(Protocol):
    """A cursor of Python's database API."""

    @property
    def rowcount(self) -> int: ...

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Any: ...

    def fetchone(self) -> Any: ...


class Connection(Protocol):
    """A connection of Python's database API."""

    def cursor(self) -> Any: ...

    def commit(self) -> Any: ...

    def rollback(self) -> Any: ...


@dataclass(frozen=True)
class Dialect:
    """The statements of one kind of database: `create`, once, and `raise_token`, the first one of each transaction."""

    create: str
    raise_token: str
    # What shows the highest token, where the number of changed rows does not tell.
    highest: str | None = None
    # What begins a transaction that nobody writes beside, where the first statement does not.
    begin: str | None = None


_UPSERT = """INSERT INTO fencing_tokens (name, token) VALUES ({0}, {0})
ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fencing_tokens.token <= excluded.token"""

POSTGRESQL = Dialect(
    create="CREATE TABLE IF NOT EXISTS fencing_tokens (name text PRIMARY KEY, token bigint NOT NULL)",
    raise_token=_UPSERT.format("%s"),
)
SQLITE = Dialect(
    create="CREATE TABLE IF NOT EXISTS fencing_tokens (name TEXT PRIMARY KEY, token INTEGER NOT NULL)",
    raise_token=_UPSERT.format("?"),
    begin="BEGIN IMMEDIATE",
)
# Names are compared byte for byte. The number of changed rows is the same for an equal and for a lower token, so the row is
# read behind, with its lock.
MYSQL = Dialect(
    create="""CREATE TABLE IF NOT EXISTS fencing_tokens (
    name varbinary(600) PRIMARY KEY, token bigint NOT NULL
) ENGINE = InnoDB""",
    raise_token="""INSERT INTO fencing_tokens (name, token) VALUES (%s, %s)
ON DUPLICATE KEY UPDATE token = GREATEST(token, VALUES(token))""",
    highest="SELECT token FROM fencing_tokens WHERE name = %s FOR UPDATE",
)

_DRIVERS = {
    "psycopg": POSTGRESQL,
    "psycopg2": POSTGRESQL,
    "sqlite3": SQLITE,
    "pymysql": MYSQL,
    "MySQLdb": MYSQL,
    "mysql": MYSQL,
    "mariadb": MYSQL,
}


def _dialect_of(driver: object) -> Dialect:
    for kind in type(driver).__mro__:
        dialect = _DRIVERS.get(kind.__module__.partition(".")[0])
        if dialect:
            return dialect
    known = ", ".join(_DRIVERS)
    raise TypeError(f"dialect must be given for {type(driver).__module__}: the known drivers are {known}")


def raise_token(cursor: Cursor, lock: Held | tuple[str, int], dialect: Dialect | None = None) -> None:
    """Raises the token of a lock in the row of its name. It must be the first statement of its transaction.

    `lock` is a held lock, or its name and token. The transaction then has the row to itself until it ends, so those of one
    lock run one after the other. Raises StaleToken if a newer holder has raised the row: roll the transaction back.
    """
    name, token = name_and_token(lock)
    dialect = dialect or _dialect_of(cursor)
    cursor.execute(dialect.raise_token, (name, token))
    if dialect.highest:
        cursor.execute(dialect.highest, (name,))
        is_stale = cursor.fetchone()[0] > token
    else:
        is_stale = cursor.rowcount == 0
    if is_stale:
        raise StaleToken(name, token)


@contextmanager
def transaction(connection: Connection, lock: Held | tuple[str, int], dialect: Dialect | None = None) -> Iterator[Any]:
    """A transaction that begins by raising the token of a lock. Gives its cursor.

    It commits when the block ends, and rolls back if the block raises. The connection must have no transaction yet, because
    what was read in it was read before the raise, and nothing else may use it meanwhile: a service takes one for each
    request. psycopg and the drivers of MySQL must not commit each statement by themselves. Let errors of statements end the
    block, because after a deadlock MySQL has rolled back the raise too. Raises StaleToken.
    """
    dialect = dialect or _dialect_of(connection)
    with _alone(connection):
        if _has_transaction(connection):
            raise RuntimeError("the connection has a transaction already: what it has read was read before the raise")
        if dialect.begin is None and _commits_each_statement(connection):
            raise RuntimeError("the connection commits each statement: the raise would not commit with the work")
        cursor = connection.cursor()
        try:
            if dialect.begin:
                cursor.execute(dialect.begin)
            raise_token(cursor, lock, dialect)
            yield cursor
            if _has_failed(connection):
                raise RuntimeError("a statement of the transaction had failed: the commit would take the work back silently")
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            cursor.close()


_ids_in_use: set[int] = set()
_ids_in_use_lock = threading.Lock()


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Drivers let threads share a connection, whose statements would run in one transaction."""
    with _ids_in_use_lock:
        if id(connection) in _ids_in_use:
            raise RuntimeError("the connection has a transaction already: take one for each request")
        _ids_in_use.add(id(connection))
    try:
        yield
    finally:
        _ids_in_use.discard(id(connection))


def _status(connection: Any) -> int:
    """That of psycopg and psycopg2, where 0 is idle and 3 is a transaction in which a statement failed."""
    status: int = getattr(getattr(connection, "info", None), "transaction_status", 0)
    return status


def _has_failed(connection: Any) -> bool:
    return _status(connection) == 3


def _has_transaction(connection: Any) -> bool:
    # sqlite3 and mysql.connector; psycopg and psycopg2; PyMySQL, where 1 is the flag of the protocol.
    status = _status(connection) or getattr(connection, "server_status", 0) & 1
    return bool(getattr(connection, "in_transaction", False) or status)


def _commits_each_statement(connection: Any) -> bool:
    # An attribute for psycopg and mysql.connector, a method of PyMySQL and mysqlclient that has get_autocommit beside it.
    asks = getattr(connection, "get_autocommit", None)
    return bool(asks()) if callable(asks) else getattr(connection, "autocommit", False) is True
