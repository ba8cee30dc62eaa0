"""A file with the highest token of its lock beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ._errors import Held, InvalidToken, StaleToken, name_and_token, parse


@contextmanager
def file(path: str | os.PathLike[str], lock: Held | tuple[str, int]) -> Iterator[Path]:
    """Raises the token beside a file, and keeps other holders of this machine out until the block ends.

    The token is in `PATH.token`, and `PATH.lock` is locked by `flock` meanwhile: all processes must see one file system that
    has it. Delete neither of them. Give the file its content at once, by a rename, if the process may end in the block.
    Raises StaleToken.
    """
    import fcntl

    name, token = name_and_token(lock)
    path = Path(path)
    kept = path.with_name(path.name + ".token")
    descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        highest = _read(kept)
        if highest > token:
            raise StaleToken(name, token)
        if highest < token:
            _replace(kept, str(token))
        yield path
    finally:
        os.close(descriptor)


def _read(path: Path) -> int:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return 0
    try:
        return parse(text.strip())
    except InvalidToken as error:
        raise OSError(f"{path} has no token, but {text!r}") from error


def _replace(path: Path, text: str) -> None:
    """Durably: a crash leaves the old content or the new one."""
    new = path.with_name(path.name + ".new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
