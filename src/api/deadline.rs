//! The caller's own deadline.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response};
use tokio::time::{Sleep, sleep};
use tonic::metadata::MetadataMap;

use super::status;

/// The header with the caller's timeout.
pub(super) const HEADER: &str = "grpc-timeout";
/// How long before the caller's deadline a wait ends, at most: time for the answer to arrive.
const HEAD_START: Duration = Duration::from_millis(100);

/// Shortens a wait so that it ends before the caller's deadline.
///
/// If both sides gave up at the same instant, each call would end with a stream reset. After
/// thousands of resets the connection is closed, and the client would not learn that its wait timed
/// out.
pub(super) fn shortened(wait: Duration, metadata: &MetadataMap) -> Duration {
    let timeout = metadata.get(HEADER).and_then(|text| timeout(text.to_str().ok()?));
    timeout.map_or(wait, |timeout| wait.min(timeout - HEAD_START.min(timeout / 10)))
}

/// A call that ends with its caller's deadline, unless it was answered before.
pub(super) struct Timed<F> {
    call: F,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<F> Timed<F> {
    /// A call with this deadline.
    pub(super) fn new(call: F, deadline: Option<Duration>) -> Self {
        Self {
            call,
            deadline: deadline.map(|deadline| Box::pin(sleep(deadline))),
        }
    }
}

/// The caller's timeout in these headers.
pub(super) fn of(headers: &HeaderMap) -> Option<Duration> {
    timeout(headers.get(HEADER)?.to_str().ok()?)
}

impl<F, B: Default> Future for Timed<F>
where
    F: Future<Output = Result<Response<B>, Infallible>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let answered @ Poll::Ready(_) = Pin::new(&mut self.call).poll(cx) {
            return answered;
        }
        let Some(deadline) = &mut self.deadline else {
            return Poll::Pending;
        };
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Ok(status::deadline_passed().into_http()))
    }
}

/// The header of this timeout.
pub(super) fn header(timeout: Duration) -> HeaderValue {
    let millis = timeout.as_millis();
    // At most eight digits are allowed.
    let text = if millis < 100_000_000 {
        format!("{millis}m")
    } else {
        format!("{}S", millis / 1000)
    };
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("99999999S"))
}

/// Parses a `grpc-timeout`: at most eight digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = number.len() <= 8 && number.bytes().all(|b| b.is_ascii_digit());
    let number: u32 = number.parse().ok().filter(|_| is_number)?;
    let unit = match unit {
        "H" => Duration::from_secs(3600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    Some(unit * number)
}

#[cfg(test)]
mod tests {
    use super::*;

    // G14c
    #[test]
    fn a_wait_ends_before_the_callers_deadline() {
        let wait = Duration::from_secs(10);
        for (text, expected) in [
            ("2S", Duration::from_millis(1900)),
            ("500m", Duration::from_millis(450)),
            ("99999999H", wait),
            ("1x", wait),
            ("", wait),
            ("S", wait),
            ("+1S", wait),
            ("123456789m", wait),
        ] {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().unwrap());
            assert_eq!(shortened(wait, &metadata), expected, "{text:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_with_the_deadline_of_its_caller() {
        let mut headers = HeaderMap::new();
        assert_eq!(of(&headers), None);
        headers.insert("grpc-timeout", "2S".parse().unwrap());
        let began = tokio::time::Instant::now();
        let pending = std::future::pending::<Result<Response<tonic::body::Body>, Infallible>>();
        let Ok(answer) = Timed::new(pending, of(&headers)).await;
        assert_eq!(answer.headers()["grpc-status"], "4");
        assert_eq!(began.elapsed(), Duration::from_secs(2));
    }

    #[test]
    fn a_wait_without_a_deadline_is_unchanged() {
        assert_eq!(
            shortened(Duration::from_secs(3), &MetadataMap::new()),
            Duration::from_secs(3)
        );
    }
}
