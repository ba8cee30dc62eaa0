from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import databases
import pytest

import fencepost
from fencepost import fence

Connect = Callable[[], Any]


@contextmanager
def _sqlite(folder: Path) -> Iterator[Connect]:
    yield lambda: sqlite3.connect(folder / "work.db", timeout=10)


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb"])
def connect(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    """A database with an empty fence and an account."""
    dialect = {"sqlite": fence.SQLITE, "postgres": fence.POSTGRESQL, "mariadb": fence.MYSQL}[request.param]
    makers = {"postgres": databases.postgres, "mariadb": databases.mariadb}
    made = makers.get(request.param, lambda: _sqlite(tmp_path_factory.mktemp("sqlite")))
    with made() as connect, closing(connect()) as connection:
        with closing(connection.cursor()) as cursor:
            cursor.execute(dialect.create)
            cursor.execute("CREATE TABLE account (total integer NOT NULL, token bigint NOT NULL)")
            cursor.execute("INSERT INTO account VALUES (5, 0)")
        connection.commit()
        yield connect


def _total(cursor: Any) -> int:
    cursor.execute("SELECT total FROM account")
    total: int = cursor.fetchone()[0]
    return total


def _set(cursor: Any, total: int) -> None:
    cursor.execute(f"UPDATE account SET total = {total:d}")


def _shown(connect: Connect) -> int:
    with closing(connect()) as connection, closing(connection.cursor()) as cursor:
        return _total(cursor)


def test_a_paused_holder_that_has_read_writes_nothing_after_a_newer_one(connect: Connect, name: str) -> None:
    with closing(connect()) as paused, closing(connect()) as newer:
        with fence.transaction(paused, (name, 33)) as cursor:
            _set(cursor, 5)
            read = _total(cursor)
        with fence.transaction(newer, (name, 34)) as cursor:
            _set(cursor, _total(cursor) + 1)
        with pytest.raises(fence.StaleToken), fence.transaction(paused, (name, 33)) as cursor:
            _set(cursor, read + 1)
        assert _shown(connect) == 6
        # The newer one goes on, with the same token.
        with fence.transaction(newer, (name, 34)) as cursor:
            _set(cursor, _total(cursor) + 1)
        assert _shown(connect) == 7


def test_a_comparison_in_the_write_alone_loses_an_update(connect: Connect) -> None:
    """What the raise before the read is for: a paused holder writes between the newer one's read and write."""
    with closing(connect()) as connection, closing(connection.cursor()) as cursor:
        cursor.execute("UPDATE account SET total = 5, token = 33")
        read_by_33 = read_by_34 = _total(cursor)
        for read, token in ((read_by_33, 33), (read_by_34, 34)):
            cursor.execute(f"UPDATE account SET total = {read + 1}, token = {token} WHERE token <= {token}")
            assert cursor.rowcount == 1
        connection.commit()
    assert _shown(connect) == 6, "of two additions to 5 one is lost"


def test_transactions_of_one_lock_run_one_after_the_other(connect: Connect, name: str) -> None:
    entered, finished = threading.Event(), []

    def newer() -> None:
        with closing(connect()) as connection:
            entered.set()
            with fence.transaction(connection, (name, 34)) as cursor:
                finished.append("newer")
                _set(cursor, _total(cursor) * 10)

    with closing(connect()) as connection:
        thread = threading.Thread(target=newer)
        with fence.transaction(connection, (name, 33)) as cursor:
            thread.start()
            assert entered.wait(10)
            thread.join(0.3)
            _set(cursor, 2)
            finished.append("older")
        thread.join(30)
    assert finished == ["older", "newer"]
    assert _shown(connect) == 20


def test_of_two_requests_at_once_over_one_connection_one_is_refused(tmp_path: Path, name: str) -> None:
    entered, both = threading.Event(), threading.Event()

    class Slow(sqlite3.Connection):
        """Shows no transaction for a while, as one does whose first statement is on its way."""

        def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
            entered.set()
            assert both.wait(10)
            return super().cursor(factory)

    connection = sqlite3.connect(tmp_path / "db", check_same_thread=False, factory=Slow)
    connection.execute(fence.SQLITE.create)

    def put() -> None:
        with fence.transaction(connection, (name, 34)):
            pass

    with closing(connection):
        thread = threading.Thread(target=put)
        thread.start()
        assert entered.wait(10)
        threading.Timer(0.3, both.set).start()
        with pytest.raises(RuntimeError, match="has a transaction already: take one for each request"):
            put()
        thread.join(10)
        put()


def test_a_block_that_raises_takes_the_raise_back(connect: Connect, name: str) -> None:
    with closing(connect()) as connection:
        with pytest.raises(ZeroDivisionError), fence.transaction(connection, (name, 50)) as cursor:
            _set(cursor, 1 // 0)
        with fence.transaction(connection, (name, 49)):
            pass


def test_names_are_compared_byte_for_byte(connect: Connect, name: str) -> None:
    with closing(connect()) as connection:
        for number, odd in enumerate([name, name.upper(), name + " ", name + "\u00e9", "x" * 512]):
            with fence.transaction(connection, (odd, 100 - number)):
                pass


def test_a_transaction_that_has_read_already_is_refused(connect: Connect, name: str) -> None:
    with closing(connect()) as connection, closing(connection.cursor()) as cursor:
        # sqlite3 begins none for a SELECT.
        _set(cursor, _total(cursor))
        with pytest.raises(RuntimeError, match="already"), fence.transaction(connection, (name, 33)):
            pass


def test_a_connection_that_commits_each_statement_is_refused(connect: Connect, name: str) -> None:
    with closing(connect()) as connection:
        if isinstance(connection, sqlite3.Connection):
            connection.isolation_level = None
            with fence.transaction(connection, (name, 33)):
                assert connection.in_transaction
            return
        if hasattr(connection, "get_autocommit"):
            connection.autocommit(True)
        else:
            connection.autocommit = True
        with pytest.raises(RuntimeError, match="commits each"), fence.transaction(connection, (name, 33)):
            pass


def test_a_connection_of_sqlite_whose_commit_does_nothing_is_refused(tmp_path: Path, name: str) -> None:
    class Autocommit(sqlite3.Connection):
        autocommit = True

    with (
        closing(sqlite3.connect(tmp_path / "db", factory=Autocommit)) as connection,
        pytest.raises(RuntimeError, match="commits each"),
        fence.transaction(connection, (name, 33)),
    ):
        pass


def test_a_failed_statement_that_the_block_hides_is_no_commit(connect: Connect, name: str) -> None:
    with closing(connect()) as connection:
        if not hasattr(connection, "info"):
            pytest.skip("only PostgreSQL then takes a commit for a rollback")
        refused = pytest.raises(RuntimeError, match=_ENDED)
        with refused, fence.transaction(connection, (name, 33)) as cursor, suppress(Exception):
            cursor.execute("SELECT 1 / 0")


_ENDED = "has failed or ended before its commit"


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_transaction_that_its_block_ends_commits_nothing_afterwards(connect: Connect, name: str, end: str) -> None:
    before = _shown(connect)
    refused = pytest.raises(RuntimeError, match=_ENDED)
    with closing(connect()) as connection, refused, fence.transaction(connection, (name, 33)) as cursor:
        cursor.execute(end)
        _set(cursor, before + 1)
    assert _shown(connect) == before


def test_after_a_deadlock_that_the_block_hides_nothing_is_committed(name: str) -> None:
    with databases.mariadb() as connect, closing(connect()) as connection, closing(connect()) as other:
        with closing(other.cursor()) as heavier:
            for statement in (fence.MYSQL.create, "CREATE TABLE account (total integer)", "INSERT INTO account VALUES (5)"):
                heavier.execute(statement)
            other.commit()
            # MariaDB rolls the lighter of two transactions back.
            heavier.execute("INSERT INTO account SELECT 5 FROM seq_1_to_100")
            heavier.execute("UPDATE account SET total = 5")

            def wait_for_the_raise() -> None:
                heavier.execute(str(fence.MYSQL.highest), (name.encode(),))
                other.rollback()

            thread = threading.Thread(target=wait_for_the_raise)
            with pytest.raises(RuntimeError, match=_ENDED), fence.transaction(connection, (name, 33)) as cursor:
                thread.start()
                with pytest.raises(Exception, match="Deadlock found"):
                    _set(cursor, 6)
                _set(cursor, 100)
            thread.join(30)
        assert _shown(connect) == 5


def test_a_name_is_one_row_whatever_the_character_set_of_the_connection(name: str) -> None:
    with databases.mariadb() as connect, closing(connect()) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(fence.MYSQL.create)
        with fence.transaction(connection, (name + "\u00e9", 34)):
            pass
        connection.set_character_set("latin1")
        with pytest.raises(fence.StaleToken), fence.transaction(connection, (name + "\u00e9", 33)):
            pass


def test_a_held_lock_names_its_token_and_a_lost_one_raises_nothing(
    client: fencepost.Client, connect: Connect, name: str
) -> None:
    with closing(connect()) as connection:
        with client.lock(name) as lock, fence.transaction(connection, lock) as cursor:
            _set(cursor, 8)
        with pytest.raises(fencepost.LeaseLost), fence.transaction(connection, lock):
            pass
        with client.lock(name) as later, fence.transaction(connection, later):
            assert later.token > lock.token


@pytest.mark.parametrize("token", [0, -1, 1 << 53, True, "33", 33.0, None])
def test_what_is_no_token_is_refused(token: Any) -> None:
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(fence.InvalidToken):
        fence.raise_token(connection.cursor(), ("a", token), fence.SQLITE)


def test_an_unknown_driver_is_told() -> None:
    with pytest.raises(TypeError, match="dialect"):
        fence.raise_token(object(), ("a", 1))  # type: ignore[arg-type]


def _wsgi(connect: Connect, name: str) -> fence.WsgiFence:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        if environ["REQUEST_METHOD"] == "PUT":
            with closing(connect()) as connection, fence.transaction(connection, (name, environ[fence.ENVIRON])) as cursor:
                _set(cursor, _total(cursor) + 1)
        start_response("200 OK", [])
        return [b"done"]

    return fence.WsgiFence(app)


def _wsgi_status(app: fence.WsgiFence, method: str, token: str | None) -> int:
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    environ["REQUEST_METHOD"] = method
    if token is not None:
        environ["HTTP_X_FENCING_TOKEN"] = token
    statuses: list[str] = []

    def start_response(status: str, headers: Any, error: Any = None) -> None:
        assert error or not statuses, "it has begun"
        statuses.append(status)

    body = app(environ, start_response)
    list(body)
    getattr(body, "close", lambda: None)()
    return int(statuses[-1].split()[0])


def _asgi_status(app: fence.AsgiFence, method: str, token: str | None) -> int:
    given = [] if token is None else token.encode("latin-1").split(b", ")
    named = [(b"x-fencing-token", one) for one in given]
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    asyncio.run(app({"type": "http", "method": method, "headers": named}, receive, send))
    status: int = sent[0]["status"]
    assert sent[-1]["type"] == "http.response.body"
    return status


_REQUESTS = [
    ("GET", None, 200),
    ("PUT", None, 428),
    ("PUT", "34", 200),
    ("PUT", "33", 412),
    ("PUT", "34", 200),
    *(
        ("PUT", bad, 400)
        for bad in ("", "0", "-1", "3 4", "+3", "1_0", "\u00b2", "9007199254740992", "x", "34, 34", "35, 34")
    ),
]


def test_a_service_of_wsgi_answers_412_to_a_lower_token_and_428_to_none(connect: Connect, name: str) -> None:
    app, before = _wsgi(connect, name), _shown(connect)
    assert [_wsgi_status(app, method, token) for method, token, _ in _REQUESTS] == [status for *_, status in _REQUESTS]
    assert _shown(connect) == before + 2


def test_a_service_of_wsgi_that_has_begun_its_answer_or_yields_it_answers_412(connect: Connect, name: str) -> None:
    closed = []

    class Body:
        def __init__(self, token: int) -> None:
            self.token = token

        def __iter__(self) -> Iterator[bytes]:
            with closing(connect()) as connection, fence.transaction(connection, (name, self.token)):
                yield b"done"

        def close(self) -> None:
            closed.append(self.token)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Body:
        start_response("200 OK", [])
        return Body(environ[fence.ENVIRON])

    guarded = fence.WsgiFence(app)
    assert [_wsgi_status(guarded, "PUT", token) for token in ("34", "33")] == [200, 412]
    assert closed == [34, 33]


def test_a_service_of_asgi_answers_412_to_a_lower_token_and_428_to_none(connect: Connect, name: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "PUT":
            with closing(connect()) as connection, fence.transaction(connection, (name, scope[fence.ENVIRON])) as cursor:
                _set(cursor, _total(cursor) + 1)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    guarded, before = fence.AsgiFence(app), _shown(connect)
    assert [_asgi_status(guarded, method, token) for method, token, _ in _REQUESTS] == [status for *_, status in _REQUESTS]
    assert _shown(connect) == before + 2


def test_the_header_has_the_token_of_a_held_lock(client: fencepost.Client, name: str) -> None:
    with client.lock(name) as lock:
        assert fence.headers(lock) == {"X-Fencing-Token": str(lock.token)}
    with pytest.raises(fencepost.LeaseLost):
        fence.headers(lock)
