"""An object of S3 with the highest token of its lock."""

from __future__ import annotations

from typing import Any, Protocol

from ._errors import Held, StaleToken, name_and_token, parse

_PREFIX = b"fencing-token: "


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
        name, token = name_and_token(lock)
        while True:
            etag, highest, data = self._get()
            if highest > token:
                raise StaleToken(name, token)
            if highest == token or self._put(etag, token, data):
                return data

    def write(self, lock: Held | tuple[str, int], data: bytes) -> None:
        """Replaces what the object has. Raises StaleToken, and then nothing was changed."""
        name, token = name_and_token(lock)
        while True:
            etag, highest, _ = self._get()
            if highest > token:
                raise StaleToken(name, token)
            if self._put(etag, token, data):
                return

    def _get(self) -> tuple[str | None, int, bytes | None]:
        try:
            answer = self._s3.get_object(**self._address)
        except Exception as error:
            if _status(error) == 404:
                return None, 0, None
            raise
        body: bytes = answer["Body"].read()
        line, end, data = body.partition(b"\n")
        if not end or not line.startswith(_PREFIX):
            raise ValueError(f"the object {self._address} does not begin with a token: put one there first")
        is_empty, data = data[:1] == b"0", data[2:]
        return answer["ETag"], parse(line[len(_PREFIX) :].decode()), None if is_empty else data

    def _put(self, etag: str | None, token: int, data: bytes | None) -> bool:
        condition = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
        body = b"%s%d\n%d\n%s" % (_PREFIX, token, data is not None, data or b"")
        try:
            self._s3.put_object(**self._address, Body=body, **condition)
        except Exception as error:
            # Another write came between.
            if _status(error) in (404, 409, 412):
                return False
            raise
        return True


def _status(error: Exception) -> int:
    response = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
