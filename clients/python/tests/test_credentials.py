"""Certificates and bearer tokens, which are read again."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import until

import fencepost
from fencepost import Client, _settings


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
        verbs = ["acquire"]
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
            client.get(name)
        with pytest.raises(fencepost.PermissionDenied):
            next(client.watch(name))
    with Client(f"https://{address}", ca_file=folder / "ca.pem") as client, pytest.raises(fencepost.Unauthenticated):
        client.lock(name).acquire()


def test_a_server_of_another_authority_is_not_trusted(folder: Path, address: str, name: str) -> None:
    with Client(f"https://{address}", ca_file=folder / "other.pem") as client, pytest.raises(fencepost.Unavailable):
        client.lock(name).acquire()


def test_a_bearer_token_is_read_again(
    folder: Path, address: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with (
        Client(f"https://{address}", ca_file=folder / "ca.pem", bearer_file=token) as client,
        client.lock(name, ttl=1) as lock,
    ):
        # A token that the server does not know is refused, and so read again.
        token.write_text("wrong")
        client._core.settings.read_token()
        token.write_text("second")
        with client.lock(f"{name}-2", wait=1):
            pass
        monkeypatch.setattr(_settings, "_TOKEN_AGE", 0)
        token.unlink()
        with client.lock(f"{name}-3"):
            assert not lock.wait_lost(2), "the one before stays in use"
