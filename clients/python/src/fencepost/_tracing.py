"""Log lines, and spans if OpenTelemetry is installed. A handler or an exporter of the user that fails ends nothing."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext, suppress
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


def acquiring(names: list[str], wait: float | None) -> AbstractContextManager[Any]:
    """The span of an acquire. An error is recorded in it."""
    attributes: dict[str, Any] = {"fencepost.locks": names, "fencepost.wait_s": wait or 0.0}
    tracer = trace and trace.get_tracer("fencepost")
    return tracer.start_as_current_span("fencepost.acquire", attributes=attributes) if tracer else nullcontext()


def current() -> Any:
    """The span in which a lock is held."""
    return trace and trace.get_current_span()


def lost(span: Any, cause: str) -> None:
    """Records the loss of a lease."""
    with suppress(Exception):
        if span:
            span.add_event("lost", {"fencepost.cause": cause})
