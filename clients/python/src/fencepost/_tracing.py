"""Spans, if OpenTelemetry is installed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

try:
    from opentelemetry import trace
except ImportError:
    trace = None  # type: ignore[assignment]


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
    if span:
        span.add_event("lost", {"fencepost.cause": cause})
