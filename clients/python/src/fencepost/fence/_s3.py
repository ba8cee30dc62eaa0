"""An object of S3 with the highest token of its lock."""

from __future__ import annotations

from typing import Any, Protocol

from ._errors import Held, InvalidToken, StaleToken, name_and_token, parse

_PREFIX = b"fencing-token: "
# A write fails only if another one came between, and those of one lock are few.
_ATTEMPTS = 100


class S3(Protocol):
    """A client of boto3 for S3, or for a store with its conditional writes."""

    def get_object(self, **arguments: Any) -> Any: ...

    def put_object(self, **arguments: Any) -> Any: ...


class S3Object:
    """An object whose body begins with the token of its last holder.

    The token is in the body, because a conditional write compares the ETag, which is that of the body alone: with the token
    in the metadata, a paused holder that read the same bytes as they are now would pass. Needs boto3 1.35.69 or newer and a
    store with `If-Match` and `If-None-Match`.
    """

    def __init__(self, s3: S3, bucket: str, key: str) -> None:
        self._s3, self._address = s3, {"Bucket": bucket, "Key": key}

    def read(self, lock: Held | tuple[str, int]) -> bytes | None:
        """Raises the token, then returns what the object has; None if there is none. Raises StaleToken."""
        return self._change(lock, None)

    def write(self, lock: Held | tuple[str, int], data: bytes) -> None:
        """Replaces what the object has. Raises StaleToken, and then nothing was changed."""
        self._change(lock, data)

    def _change(self, lock: Held | tuple[str, int], data: bytes | None) -> bytes | None:
        """Puts the token and data, or without, the data that it found, which it returns."""
        name, token = name_and_token(lock)
        for _ in range(_ATTEMPTS):
            etag, highest, found = self._get()
            if highest > token:
                raise StaleToken(name, token)
            if data is None and highest == token:
                return found
            if self._put(etag, token, found if data is None else data):
                return found
        raise RuntimeError(
            f"the store refused the write of {self._address} at {_ATTEMPTS} attempts, as if others had replaced it"
        )

    def _get(self) -> tuple[str | None, int, bytes | None]:
        try:
            answer = self._s3.get_object(**self._address)
        except Exception as error:
            if _response(error).get("Error", {}).get("Code") == "NoSuchKey":
                return None, 0, None
            raise
        body: bytes = answer["Body"].read()
        if not answer.get("ETag"):
            raise ValueError(f"the store gave the object {self._address} without an ETag, on which writes depend")
        line, _, data = body.partition(b"\n")
        try:
            highest = parse(line.removeprefix(_PREFIX).decode("latin-1") if line.startswith(_PREFIX) else "")
        except InvalidToken as error:
            raise ValueError(f"the object {self._address} does not begin with a token: put one there first") from error
        is_empty, data = data[:1] == b"0", data[2:]
        return answer["ETag"], highest, None if is_empty else data

    def _put(self, etag: str | None, token: int, data: bytes | None) -> bool:
        condition = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
        body = b"%s%d\n%d\n%s" % (_PREFIX, token, data is not None, data or b"")
        try:
            self._s3.put_object(**self._address, Body=body, **condition)
        except Exception as error:
            status = _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
            # Another write came between; without a condition on an object, 404 is that of its bucket.
            if status in (409, 412) or (status == 404 and etag):
                return False
            raise
        return True


def _response(error: Exception) -> dict[str, Any]:
    return getattr(error, "response", None) or {}
