from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any, ClassVar

import databases
import pytest

from fencepost import fence


def test_redis_refuses_a_paused_holder_and_runs_none_of_its_commands(name: str) -> None:
    with databases.redis() as redis:
        guard = fence.RedisFence(redis)
        guard.raise_token((name, 33))
        read = redis.get("total")
        assert guard.run((name, 34), ["SET", "total", 1], ["INCRBY", "total", 2]) == ["OK", 3]
        with pytest.raises(fence.StaleToken):
            guard.run((name, 33), ["SET", "total", read or 0])
        assert redis.get("total") == "3"
        assert guard.run((name, (1 << 53) - 1), ["GET", "total"]) == ["3"]
        assert guard.run((name, (1 << 53) - 1), ["GET", b"total"], ["PING"]) == ["3", "PONG"]
        with pytest.raises(fence.StaleToken):
            guard.raise_token((name, (1 << 53) - 2))


def test_commands_of_redis_use_the_keys_as_the_client_sends_them(name: str) -> None:
    with databases.redis() as redis:

        class Prefixing:
            def eval(self, script: str, count: int, *words: Any) -> Any:
                return redis.eval(script, count, *(f"app:{key}" for key in words[:count]), *words[count:])

        fence.RedisFence(Prefixing()).run((name, 33), ["INCR", "total"], ["INCRBY", "total", 2])
        assert sorted(redis.keys()) == [f"app:fencepost:fence:{name}", "app:total"]
        assert redis.get("app:total") == "3"


def test_an_object_of_s3_refuses_a_paused_holder_also_with_the_bytes_that_were_there(name: str) -> None:
    with databases.s3() as s3:
        s3.create_bucket(Bucket="fenced")
        report = fence.S3Object(s3, "fenced", "daily")
        assert report.read((name, 33)) is None
        report.write((name, 33), b"first\n\x00")
        assert report.read((name, 33)) == b"first\n\x00"
        # It is paused between its look and its write.
        etag, highest, data = report._get()
        assert (highest, data) == (33, b"first\n\x00")
        assert report.read((name, 34)) == b"first\n\x00"
        assert not report._put(etag, 33, b"late"), "the bytes are those of before, but for the token"
        with pytest.raises(fence.StaleToken):
            report.write((name, 33), b"late")
        with pytest.raises(fence.StaleToken):
            report.read((name, 33))
        report.write((name, 34), b"")
        assert report.read((name, 35)) == b""
        for other in (b"no token", b"34\n1\n", b"fencing-token: 0\n1\n", b"fencing-token: x\n1\n"):
            s3.put_object(Bucket="fenced", Key="other", Body=other)
            with pytest.raises(ValueError, match="does not begin with a token"):
                fence.S3Object(s3, "fenced", "other").read((name, 33))


def test_a_bucket_that_is_missing_and_an_object_without_etag_are_errors(name: str) -> None:
    with databases.s3() as s3:
        missing = fence.S3Object(s3, "missing", "daily")
        with pytest.raises(s3.exceptions.NoSuchBucket):
            missing.read((name, 33))
        with pytest.raises(s3.exceptions.NoSuchBucket):
            missing.write((name, 33), b"first")

    class Store:
        """Has no ETag, or one that is never that of the next write."""

        class Refusal(Exception):
            response: ClassVar[Any] = {"ResponseMetadata": {"HTTPStatusCode": 412}}

        def __init__(self, etag: str) -> None:
            self.etag = etag

        def get_object(self, **address: Any) -> Any:
            return {"Body": io.BytesIO(b"fencing-token: 1\n1\n"), "ETag": self.etag}

        def put_object(self, **arguments: Any) -> Any:
            raise self.Refusal

    with pytest.raises(ValueError, match="without an ETag"):
        fence.S3Object(Store(""), "fenced", "daily").read((name, 33))
    with pytest.raises(RuntimeError, match="100 attempts"):
        fence.S3Object(Store("other"), "fenced", "daily").write((name, 33), b"first")


def test_a_file_refuses_a_paused_holder_and_lets_one_in_at_a_time(tmp_path: Path, name: str) -> None:
    report, order = tmp_path / "report", []
    with fence.file(report, (name, 33)) as path:
        path.write_text("5")
        read = int(path.read_text())

    def newer() -> None:
        with fence.file(report, (name, 34)) as path:
            order.append("newer")
            path.write_text(str(int(path.read_text()) + 1))

    with fence.file(report, (name, 33)):
        thread = threading.Thread(target=newer)
        thread.start()
        thread.join(0.3)
        order.append("older")
    thread.join(30)
    assert order == ["older", "newer"]
    with pytest.raises(fence.StaleToken), fence.file(report, (name, 33)) as path:
        path.write_text(str(read + 1))
    assert report.read_text() == "6"
    # A shell script leaves the end of a line behind the token.
    report.with_name("report.token").write_text("35\n")
    with fence.file(report, (name, 35)):
        pass
    # Not the token that was given is wrong.
    report.with_name("report.token").write_text("x\n")
    with pytest.raises(OSError, match="has no token"), fence.file(report, (name, 35)):
        pass
