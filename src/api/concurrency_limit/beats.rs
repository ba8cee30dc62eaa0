//! The messages of KeepAlive, which may be larger than requests: they name up to 1,000 leases.
//!
//! Thousands of streams with such messages would fill the memory. So a stream whose messages are larger than requests
//! counts against the limit of kept leases until its end, in addition to its leases, as if all their ids were as long as
//! ids can be: the buffer of a stream keeps its size.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use tonic::Status;
use tonic::body::Body;

use super::permits::{Permit, Permits};
use crate::api::authenticate::Caller;
use crate::api::service::as_inner_body;
use crate::api::status;
use crate::error::Error;
use crate::name::MAX_LEASE_ID_BYTES;

/// The maximum size of a message of KeepAlive, unless requests may be larger.
pub(in crate::api) const BEAT_BYTES: usize = 2 << 20;

/// The bytes before each message: a flag and the length.
const HEAD: usize = 5;

/// Counts the messages of a stream that are larger than requests.
pub(super) fn counted(request: Request<Body>, permits: &Arc<Permits>) -> Request<Body> {
    let Some(caller) = request.extensions().get::<Caller>().cloned() else {
        return request;
    };
    let permits = Arc::clone(permits);
    request.map(|body| {
        Body::new(CountedBeats {
            body,
            messages: MessageBounds::default(),
            counted: permits.request_bytes,
            taken: Vec::new(),
            permits,
            caller,
        })
    })
}

/// The body of a KeepAlive's request.
struct CountedBeats {
    body: Body,
    messages: MessageBounds,
    /// The size up to which its messages are not counted, or are already.
    counted: usize,
    taken: Vec<Permit>,
    permits: Arc<Permits>,
    caller: Caller,
}

impl CountedBeats {
    /// Counts a message of this size. One that is too large is refused when it is read.
    fn count(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes > self.counted && bytes <= BEAT_BYTES {
            let leases = |bytes: usize| bytes.div_ceil(MAX_LEASE_ID_BYTES);
            let taken = if self.taken.is_empty() { 0 } else { leases(self.counted) };
            if leases(bytes) > taken {
                self.taken.push(self.permits.keep(leases(bytes) - taken, &self.caller)?);
            }
            self.counted = bytes;
        }
        Ok(())
    }
}

impl http_body::Body for CountedBeats {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        let begun = data.map_or(0, |data| this.messages.largest_begun(data));
        Poll::Ready(match this.count(begun) {
            Ok(()) => frame,
            Err(error) => Some(Err(status::of(error))),
        })
    }

    as_inner_body!();
}

/// Where the messages of a stream of bytes begin.
#[derive(Debug, Default)]
pub(in crate::api) struct MessageBounds {
    head: [u8; HEAD],
    /// How many bytes of the head have been read.
    read: usize,
    /// How many bytes of the message are still to come.
    left: usize,
}

impl MessageBounds {
    /// The size of the largest message that begins in these bytes, which follow those before; zero if none does.
    pub(in crate::api) fn largest_begun(&mut self, mut data: &[u8]) -> usize {
        let mut largest = 0;
        loop {
            let skipped = self.left.min(data.len());
            self.left -= skipped;
            data = &data[skipped..];
            let Some((first, rest)) = data.split_first() else {
                return largest;
            };
            self.head[self.read] = *first;
            data = rest;
            self.read += 1;
            if self.read == HEAD {
                let [_, length @ ..] = self.head;
                self.left = u32::from_be_bytes(length) as usize;
                self.read = 0;
                largest = largest.max(self.left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_of_messages_are_found_however_their_bytes_are_cut() {
        let message = |bytes: u8| [&[0, 0, 0, 0, bytes][..], &vec![9; bytes.into()]].concat();
        let all = [message(3), message(0), message(200), message(7)].concat();
        for cut in 1..all.len() {
            let mut messages = MessageBounds::default();
            let found: Vec<usize> = all.chunks(cut).map(|part| messages.largest_begun(part)).collect();
            assert_eq!(found.iter().max(), Some(&200), "{cut}");
            assert_eq!((messages.left, messages.read), (0, 0), "{cut}");
        }
    }
}
