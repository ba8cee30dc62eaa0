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
    # Whether the name is given as bytes, because the character set of the connection would change its text.
    is_name_binary: bool = False


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
    is_name_binary=True,
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
    lock run one after the other. Raises StaleToken if a newer holder has raised the row: roll the transaction back, also
    after an error of a later statement, because after a deadlock MySQL has rolled back the raise too.
    """
    name, token = name_and_token(lock)
    dialect = dialect or _dialect_of(cursor)
    value = name.encode() if dialect.is_name_binary else name
    cursor.execute(dialect.raise_token, (value, token))
    if dialect.highest:
        cursor.execute(dialect.highest, (value,))
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
    request. The driver must not commit each statement by itself. Let errors of statements end the block: if the database has
    rolled back the raise, as MySQL does after a deadlock, the rest of the block is rolled back too. Raises StaleToken.
    """
    dialect = dialect or _dialect_of(connection)
    with _alone(connection):
        if _has_transaction(connection):
            raise RuntimeError("the connection has a transaction already: what it has read was read before the raise")
        if _commits_each_statement(connection):
            raise RuntimeError("the connection commits each statement: the raise would not commit with the work")
        cursor = connection.cursor()
        try:
            if dialect.begin:
                cursor.execute(dialect.begin)
            raise_token(cursor, lock, dialect)
            cursor.execute("SAVEPOINT fencepost")
            yield cursor
            _require_the_raise(cursor)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            cursor.close()


def _require_the_raise(cursor: Cursor) -> None:
    """A savepoint lasts as long as the transaction, which a deadlock or the block may have ended."""
    try:
        cursor.execute("RELEASE SAVEPOINT fencepost")
    except Exception as error:
        raise RuntimeError(
            "the transaction of the raise has failed or ended before its commit: it was rolled back"
        ) from error


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


def _has_transaction(connection: Any) -> bool:
    # sqlite3 and mysql.connector; psycopg and psycopg2; PyMySQL, where 1 is the flag of the protocol.
    status = (
        getattr(getattr(connection, "info", None), "transaction_status", 0) or getattr(connection, "server_status", 0) & 1
    )
    return bool(getattr(connection, "in_transaction", False) or status)


def _commits_each_statement(connection: Any) -> bool:
    # An attribute of psycopg, mysql.connector and sqlite3; a method, beside get_autocommit, of PyMySQL and mysqlclient.
    asks = getattr(connection, "get_autocommit", None)
    return bool(asks()) if callable(asks) else getattr(connection, "autocommit", False) is True
