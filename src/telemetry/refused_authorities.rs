//! Requests that h2 refuses because of their `:authority`. h2 resets their streams, and only its log says why.

use std::cell::Cell;
use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// How the message of such an event of h2 begins.
const MESSAGE: &str = "malformed headers: malformed authority";

thread_local! {
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

/// How many such requests were refused on this thread. h2 logs a refusal while its connection is polled.
pub fn refused_authorities() -> u64 {
    REFUSED.get()
}

/// Counts the refusals, whatever is logged.
pub(super) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    let is_of_h2 = |metadata: &Metadata<'_>| {
        metadata.is_event() && *metadata.level() == Level::DEBUG && metadata.target() == "h2::server"
    };
    Counter.with_filter(filter_fn(is_of_h2))
}

struct Counter;

impl<S: Subscriber> Layer<S> for Counter {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        if message.0.starts_with(MESSAGE) {
            REFUSED.set(REFUSED.get() + 1);
        }
    }
}

/// The message of an event.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string cannot fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}
