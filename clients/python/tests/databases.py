"""Real servers of databases, each on a free port in a folder of its own, for the tests of `fencepost.fence`."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def program(*names: str) -> str:
    """The first of these that is here, by name or by a pattern of paths."""
    for name in names:
        found = shutil.which(name) if "/" not in name else next(iter(sorted(map(str, Path("/").glob(name[1:])))), None)
        if found:
            return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"{names[0]} is missing: scripts/test installs it")
    pytest.skip(f"{names[0]} is missing")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def until_answered(connect: Callable[[], T], process: subprocess.Popen[bytes]) -> T:
    end = time.monotonic() + 60
    while True:
        try:
            return connect()
        except Exception:
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.1)


@contextmanager
def _folder(user: str | None) -> Iterator[Path]:
    """A folder of its own, which the user of a server may reach."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        if user:
            shutil.chown(folder, user)
        yield Path(folder)


def _user(name: str) -> str | None:
    """That of a server which root must not be."""
    with suppress(KeyError):
        return pwd.getpwnam(name).pw_name if os.geteuid() == 0 else None
    return None


@contextmanager
def _running(command: list[str], folder: Path, user: str | None) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, user=user, cwd=folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def postgres() -> Iterator[Callable[[], Any]]:
    psycopg = pytest.importorskip("psycopg")
    folder_of = str(Path(program("/usr/lib/postgresql/*/bin/initdb")).parent)
    user, port = _user("postgres"), free_port()
    with _folder(user) as folder:
        data = str(folder / "data")
        initdb = [f"{folder_of}/initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, user=user, cwd=folder)
        settings = [f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", "fsync=off"]
        command = [f"{folder_of}/postgres", "-D", data, *(word for setting in settings for word in ("-c", setting))]

        def connect() -> Any:
            return psycopg.connect(host="127.0.0.1", port=port, user="postgres", dbname="postgres")

        with _running(command, folder, user) as process:
            until_answered(connect, process).close()
            yield connect


@contextmanager
def mariadb() -> Iterator[Callable[[], Any]]:
    pymysql = pytest.importorskip("pymysql")
    install, server = program("mariadb-install-db"), program("/usr/sbin/mariadbd", "mariadbd")
    user, port = _user("mysql"), free_port()
    with _folder(user) as folder:
        data = [f"--datadir={folder}/data", f"--tmpdir={folder}"]
        made = [install, "--no-defaults", *data, "--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(made, check=True, capture_output=True, user=user, cwd=folder)
        command = [server, "--no-defaults", *data, f"--port={port}", "--bind-address=127.0.0.1", f"--socket={folder}/s"]

        def connect() -> Any:
            return pymysql.connect(host="127.0.0.1", port=port, user="root", database="mysql")

        with _running(command, folder, user) as process:
            until_answered(connect, process).close()
            yield connect


@contextmanager
def redis() -> Iterator[Any]:
    client = pytest.importorskip("redis")
    port = free_port()
    with _folder(None) as folder:
        command = [program("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        with _running(command, folder, None) as process, client.Redis(port=port, decode_responses=True) as connection:
            until_answered(connection.ping, process)
            yield connection


@contextmanager
def s3() -> Iterator[Any]:
    boto3, moto = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        yield boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",
        )
    finally:
        server.stop()
