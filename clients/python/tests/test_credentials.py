"""Certificates and bearer tokens, which are read again."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest
from conftest import until

import fencepost
from fencepost import AsyncClient, Client
from fencepost._clock import now
from fencepost.testing import Server


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, of which `ca` has signed the certificates of the server and of a client."""
    folder = tmp_path_factory.mktemp("tls")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for ca in ("ca", "other"):
        _openssl(
            folder, "req", "-x509", *key, "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-days", "2", "-subj", f"/CN={ca}"
        )
    for name in ("server", "client"):
        (folder / "san").write_text(f"subjectAltName=DNS:{name},IP:127.0.0.1")
        _openssl(folder, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "san", "-days", "2"]
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    tokens = [f"{name}:{hashlib.sha256(name.encode()).hexdigest()}" for name in ("first", "second")]
    (folder / "bearers").write_text("\n".join(tokens))
    (folder / "server.toml").write_text(f"""
        [tls]
        certificate = "{folder}/server.pem"
        key = "{folder}/server.key"
        client_ca = "{folder}/ca.pem"
        client_auth = "optional"
        listeners = "all"
        [auth]
        bearer_file = "{folder}/bearers"
        [[auth.rules]]
        identities = ["token:*", "dns:client"]
        namespaces = ["default"]
        verbs = ["acquire", "read"]
        [namespaces.default]
        embedded = {{ path = ":memory:" }}
    """)
    ready = folder / "ready"
    options = ["--config", "server.toml", "--listen", "127.0.0.1:0", "--ready-file", "ready", "--data-dir", "data"]
    with subprocess.Popen([os.environ["FENCEPOST_BIN"], "serve", *options], cwd=folder) as process:
        until(ready.exists)
        yield ready.read_text().strip()
        process.kill()


def test_a_client_certificate_is_shown_and_the_rules_hold(folder: Path, address: str, name: str) -> None:
    ca, cert, key = folder / "ca.pem", folder / "client.pem", folder / "client.key"
    with Client(f"https://{address}", ca_file=ca, cert_file=cert, key_file=key) as client:
        with client.lock(name) as lock:
            assert lock.is_held
        with pytest.raises(fencepost.PermissionDenied):
            client.force_release(name, 1)
        with pytest.raises(fencepost.PermissionDenied):
            next(Client(f"https://{address}", namespace="other", ca_file=ca, cert_file=cert, key_file=key).watch(name))
    with Client(f"https://{address}", ca_file=folder / "ca.pem") as client, pytest.raises(fencepost.Unauthenticated):
        client.lock(name).acquire()


def test_a_certificate_that_is_refused_ends_a_wait_at_once(folder: Path, address: str, name: str) -> None:
    begin = now()
    refused = pytest.raises(fencepost.Unavailable, match=f"the certificate of {address} is refused")
    with Client(f"https://{address}", ca_file=folder / "other.pem") as client, refused as failed:
        client.lock(name, wait=60).acquire()
    assert failed.value.reason == "TLS" and now() - begin < 10


def test_tls_against_plain_says_which_side_speaks_what(address: str, running: Server, folder: Path, name: str) -> None:
    begin = now()
    refused = pytest.raises(fencepost.Unavailable, match=f"{running.address} does not speak TLS")
    with Client(f"https://{running.address}", ca_file=folder / "ca.pem") as client, refused:
        client.lock(name, wait=60).acquire()
    with Client(address) as client, pytest.raises(fencepost.Unavailable, match=f"{address} speaks TLS"):
        client.lock(name, wait=60).acquire()
    assert now() - begin < 20


@pytest.fixture
def replaced(folder: Path, address: str) -> Iterator[Callable[[str], None]]:
    """Replaces the tokens that the server takes, and waits until it has."""

    def replace(*names: str) -> None:
        (folder / "bearers").write_text("".join(f"svc:{hashlib.sha256(name.encode()).hexdigest()}\n" for name in names))

    yield replace
    replace("first", "second")
    for name in ("first", "second"):
        client = Client(f"https://{address}", ca_file=folder / "ca.pem", token=name)
        until(functools.partial(accepts, client))


def accepts(client: Client) -> bool:
    try:
        client.get("any")
    except fencepost.Unauthenticated:
        return False
    return True


def test_a_token_that_is_replaced_fails_no_wait_and_ends_no_observer(
    folder: Path, address: str, name: str, tmp_path: Path, replaced: Callable[..., None]
) -> None:
    token, ca = tmp_path / "token", folder / "ca.pem"
    token.write_text("first\n")
    replaced("first")
    with Client(f"https://{address}", ca_file=ca, bearer_file=token) as client, ThreadPoolExecutor(30) as pool:
        lock = client.lock(name, ttl=20).acquire()
        observer = client.election(name).observe()
        assert next(observer)
        waits = [pool.submit(client.lock(name, wait=30, ttl=20).acquire) for _ in range(20)]
        time.sleep(0.5)
        # The server has the new token first.
        replaced("second")
        time.sleep(3)
        token.write_text("second\n")
        for _ in range(50):  # Until the server has read it.
            time.sleep(0.1)
            client.lock(f"{name}-2", wait=20).acquire().release()
        assert lock.is_held and not [wait for wait in waits if wait.done()]
        lock.release()
        assert next(as_completed(waits)).result(10).is_held
        leader = next(observer)
        assert leader is None or leader.fencing_token > lock.token
        client.close()


def test_a_token_comes_from_a_function(folder: Path, address: str, name: str) -> None:
    asked = list[int]()

    def token() -> str:
        asked.append(threading.get_ident())
        return "first"

    with Client(f"https://{address}", ca_file=folder / "ca.pem", token=token) as client, client.lock(name):
        assert len(asked) == 1

    async def later() -> str:
        return "second"

    async def main() -> None:
        async with AsyncClient(f"https://{address}", ca_file=folder / "ca.pem", token=later) as client:
            await (await client.lock(name).acquire()).release()
        async with AsyncClient(f"https://{address}", ca_file=folder / "ca.pem", token="wrong") as client:
            with pytest.raises(fencepost.Unauthenticated):
                await client.lock(name, wait=30).acquire()
        minted = itertools.count()
        async with AsyncClient(
            f"https://{address}", ca_file=folder / "ca.pem", token=lambda: f"wrong-{next(minted)}"
        ) as client:
            with pytest.raises(fencepost.Unauthenticated):
                await client.lock(name, wait=30).acquire()

    asyncio.run(main())
