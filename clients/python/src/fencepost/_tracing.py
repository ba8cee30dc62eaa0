"""Log lines, and spans if OpenTelemetry is installed. A handler or an exporter of the user that fails ends nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

try:
    from opentelemetry import trace
except ImportError:
    trace = None  # type: ignore[assignment]

_log = logging.getLogger("fencepost")


def log(message: str, *arguments: object, is_warning: bool = False, exc_info: BaseException | None = None) -> None:
    """Writes a line."""
    level = logging.ERROR if exc_info else logging.WARNING if is_warning else logging.INFO
    with suppress(Exception):
        _log.log(level, message, *arguments, exc_info=exc_info)


def call(callback: Callable[[Any], Any], argument: Any) -> Any:
    """The result of a user's callback; None if it fails."""
    try:
        return callback(argument)
    except Exception as error:
        log("a callback failed", exc_info=error)


@contextmanager
def acquiring(names: list[str], wait: float) -> Generator[None, None, None]:
    """The span of an acquire. An error is recorded in it."""
    span, attributes = ExitStack(), {"fencepost.locks": names, "fencepost.wait_s": wait}
    with suppress(Exception):
        if trace:
            tracer: Any = trace.get_tracer("fencepost")
            span.enter_context(tracer.start_as_current_span("fencepost.acquire", attributes=attributes))
    try:
        yield
    except BaseException as error:
        with suppress(Exception):
            span.__exit__(type(error), error, error.__traceback__)
        raise
    with suppress(Exception):
        span.close()


def current() -> Any:
    """The span in which a lock is held."""
    with suppress(Exception):
        return trace and trace.get_current_span()


def lost(span: Any, cause: str) -> None:
    """Records the loss of a lease."""
    with suppress(Exception):
        if span:
            span.add_event("lost", {"fencepost.cause": cause})
