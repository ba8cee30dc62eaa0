"""The programs of docs/protect-a-resource.md, run as they stand."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import databases
import pytest

import fencepost
from fencepost import fence
from fencepost.testing import Server

_PAGE = (Path(__file__).parents[3] / "docs" / "protect-a-resource.md").read_text()
_SQL, _HTTP, _REDIS, _S3, _FILES = (block.split("```")[0] for block in _PAGE.split("```python\n")[1:])


def _database(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    with database:
        database.execute(fence.SQLITE.create)
        database.execute("CREATE TABLE account (total INTEGER NOT NULL)")
        database.execute("INSERT INTO account VALUES (5)")
    return database


def _total(database: sqlite3.Connection) -> int:
    total: int = database.execute("SELECT total FROM account").fetchone()[0]
    return total


def test_the_transaction_of_the_page_adds_one(running: Server, tmp_path: Path) -> None:
    with closing(_database(tmp_path / "db")) as database:
        for total in (6, 7):
            exec(_SQL.replace("127.0.0.1:50051", running.address), {"database": database})
            assert _total(database) == total


def test_the_service_of_the_page_refuses_a_lower_token(tmp_path: Path) -> None:
    with closing(_database(tmp_path / "db")) as database:
        names: dict[str, Any] = {"connect": lambda: sqlite3.connect(tmp_path / "db", timeout=10)}
        exec(_HTTP, names)

        def put(token: str) -> str:
            environ: dict[str, Any] = {"REQUEST_METHOD": "PUT", "HTTP_X_FENCING_TOKEN": token}
            setup_testing_defaults(environ)
            statuses: list[str] = []
            list(names["service"](environ, lambda status, headers, error=None: statuses.append(status)))
            return statuses[0]

        with ThreadPoolExecutor() as threads:  # At once.
            assert list(threads.map(put, ["34"] * 4)) == ["204 No Content"] * 4
        assert put("33") == "412 Precondition Failed"
        assert _total(database) == 0


def test_the_commands_of_redis_of_the_page_add_one(client: fencepost.Client, name: str) -> None:
    with databases.redis() as redis, client.lock(name) as lock:
        for _ in range(2):
            exec(_REDIS, {"fence": fence, "redis": redis, "lock": lock})
        assert redis.get("total") == "2"


def test_the_object_of_the_page_gets_a_line(client: fencepost.Client, name: str) -> None:
    with databases.s3() as s3, client.lock(name) as lock:
        s3.create_bucket(Bucket="reports")
        for _ in range(2):
            exec(_S3, {"fence": fence, "s3": s3, "lock": lock})
        assert fence.S3Object(s3, "reports", "daily").read(lock) == b"another line\n" * 2


def test_the_file_of_the_page_is_written(
    client: fencepost.Client, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with client.lock(name) as lock:
        exec(_FILES, {"fence": fence, "lock": lock})
    assert Path("report").read_text() == "the report of today"


@pytest.mark.parametrize("dialect", [fence.POSTGRESQL, fence.SQLITE, fence.MYSQL])
def test_the_statements_of_the_page_are_those_of_the_package(dialect: fence.Dialect) -> None:
    def words(text: str) -> list[str]:
        return text.replace("IF NOT EXISTS ", "").replace("( ", "(").split()

    page = " ".join(_PAGE.split())
    assert " ".join(words(dialect.create)).replace("( ", "(").replace(" )", ")") in page
    placeholders = dialect.raise_token.replace("(%s, %s)", "(:name, :token)").replace("(?, ?)", "(:name, :token)")
    assert " ".join(placeholders.split()) in page
    if dialect.highest:
        assert dialect.highest.replace("%s", ":name") in page
