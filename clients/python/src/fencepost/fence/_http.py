"""The header that carries a token, and services that ask for it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any

from ._errors import Held, InvalidToken, StaleToken, parse, valid

HEADER = "X-Fencing-Token"
# Where a handler finds the token: in the environ of WSGI and in the scope of ASGI.
ENVIRON = "fencepost.token"

_REFUSED = {
    428: ("Precondition Required", f"the header {HEADER} must have the token of the lock"),
    412: ("Precondition Failed", "a newer holder of the lock has used this resource"),
    400: ("Bad Request", f"the header {HEADER} must be a number from 1 to 2^53 - 1"),
}

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def headers(lock: Held) -> dict[str, str]:
    """The header for a call of a protected service. Raises LeaseLost."""
    return {HEADER: str(valid(lock.check()))}


class WsgiFence:
    """Middleware of WSGI. The handler finds the token as `environ["fencepost.token"]`.

    A request without a token is answered with 428, one with a bad token or several with 400, and one whose handler raises
    StaleToken with 412. A framework that answers errors itself, as Flask and Django do, needs a handler of StaleToken for
    that. The middleware compares nothing, because only the transaction of the work can: the handler raises the token there,
    as the first statement of `transaction`. Requests of other methods than `methods` pass.
    """

    def __init__(
        self, app: Callable[..., Iterable[bytes]], methods: Iterable[str] = ("POST", "PUT", "PATCH", "DELETE")
    ) -> None:
        self._app, self._methods = app, frozenset(methods)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answers a request."""
        if environ["REQUEST_METHOD"] not in self._methods:
            return self._app(environ, start_response)
        given = environ.get("HTTP_" + HEADER.upper().replace("-", "_"))
        if given is None:
            return _answer(428, start_response)
        try:
            environ[ENVIRON] = parse(given.strip())
        except InvalidToken:
            return _answer(400, start_response)
        return self._run(environ, start_response)

    def _run(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        body: Iterable[bytes] = ()
        try:
            body = self._app(environ, start_response)
            yield from body
        except StaleToken:
            # With the error, it replaces an answer whose headers the server has not sent yet.
            yield from _answer(412, start_response, sys.exc_info())
        finally:
            close = getattr(body, "close", None)
            if close:
                close()


def _answer(status: int, start_response: Callable[..., Any], *error: Any) -> Iterable[bytes]:
    phrase, text = _REFUSED[status]
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))]
    start_response(f"{status} {phrase}", headers, *error)
    return [text.encode()]


class AsgiFence:
    """Middleware of ASGI: what `WsgiFence` is for WSGI. The handler finds the token as `scope["fencepost.token"]`.

    With Starlette and FastAPI, `app.add_middleware(AsgiFence)` puts it behind what answers errors with 500.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        methods: Iterable[str] = ("POST", "PUT", "PATCH", "DELETE"),
    ) -> None:
        self._app, self._methods = app, frozenset(methods)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http" or scope["method"] not in self._methods:
            return await self._app(scope, receive, send)
        given = [value for name, value in scope["headers"] if name.lower() == HEADER.lower().encode()]
        if not given:
            return await _send(428, send)
        try:
            (value,) = given
            scope[ENVIRON] = parse(value.decode("latin-1").strip())
        except ValueError:
            return await _send(400, send)
        started = False

        async def forward(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, forward)
        except StaleToken:
            if started:
                raise
            await _send(412, send)


async def _send(status: int, send: Send) -> None:
    text = _REFUSED[status][1].encode()
    kind = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": kind})
    await send({"type": "http.response.body", "body": text})
