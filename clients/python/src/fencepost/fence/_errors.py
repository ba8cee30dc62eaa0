"""What a resource refuses, and the tokens that it is given."""

from __future__ import annotations

from typing import Protocol

# Tokens are below 2^53.
_END = 1 << 53


class StaleToken(Exception):
    """A newer holder of the lock has used the resource: nothing was changed. `token` is the one that was refused."""

    def __init__(self, name: str, token: int) -> None:
        super().__init__(f"token {token} of {name!r} is older than the highest that this resource has seen")
        self.name, self.token = name, token


class InvalidToken(ValueError):
    """A token is a number from 1 to 2^53 - 1."""


class Held(Protocol):
    """A held lock: its name, and a check that returns its token or raises LeaseLost."""

    @property
    def name(self) -> str: ...

    def check(self) -> int: ...


def name_and_token(lock: Held | tuple[str, int]) -> tuple[str, int]:
    """Those of a held lock, or of a request that brought them."""
    name, token = lock if isinstance(lock, tuple) else (lock.name, lock.check())
    return name, valid(token)


def valid(token: int) -> int:
    if isinstance(token, bool) or not isinstance(token, int) or not 0 < token < _END:
        raise InvalidToken(f"token must be a number from 1 to 2^53 - 1, not {token!r}")
    return token


def parse(text: str) -> int:
    # int() also takes signs, spaces, underscores and digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise InvalidToken(f"token must be a number from 1 to 2^53 - 1, not {text!r}")
    return valid(int(text))
