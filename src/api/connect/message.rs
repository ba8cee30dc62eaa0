//! The message of a request, in gRPC's form.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http_body::{Body, Frame};
use tonic::Status;
use tonic::body::Body as RequestBody;

use super::{Codec, Form};
use crate::api::{json, status};
use crate::name::InvalidField;

/// The length of what precedes a message: a byte of flags, and the length of the message in four.
pub(super) const PREFIX: usize = 5;

/// A message with its prefix.
pub(super) fn prefixed(flags: u8, message: &[u8]) -> Bytes {
    let mut whole = BytesMut::with_capacity(PREFIX + message.len());
    whole.put_u8(flags);
    whole.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    whole.put_slice(message);
    whole.freeze()
}

/// The flags and the message at the start of these bytes, and what follows them.
pub(super) fn split(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (prefix, rest) = bytes.split_first_chunk::<PREFIX>()?;
    let [flags, length @ ..] = *prefix;
    let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
    let (message, rest) = rest.split_at_checked(length)?;
    Some((flags, message, rest))
}

/// The body of a request whose one message is translated when all of it has arrived.
pub(super) struct Message {
    body: RequestBody,
    form: Form,
    limit: usize,
    read: BytesMut,
    /// Whether it was passed on, or failed.
    is_done: bool,
}

impl Message {
    /// The message of at most `limit` bytes in a body of this form.
    pub(super) fn new(body: RequestBody, form: Form, limit: usize) -> Self {
        let limit = if form.streams { limit + PREFIX } else { limit };
        Self {
            body,
            form,
            limit,
            read: BytesMut::new(),
            is_done: false,
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Status>> {
        while let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            let Ok(data) = frame?.into_data() else { continue };
            if self.read.len() + data.len() > self.limit {
                return Poll::Ready(Err(status::too_large()));
            }
            self.read.extend_from_slice(&data);
        }
        Poll::Ready(self.translated())
    }

    fn translated(&self) -> Result<Bytes, Status> {
        let message = if self.form.streams {
            let whole = split(&self.read).filter(|(flags, _, rest)| *flags == 0 && rest.is_empty());
            let problem = "must be one message after its prefix of five bytes, without compression";
            whole.ok_or_else(|| invalid(problem))?.1
        } else {
            &self.read[..]
        };
        let Codec::Json(method) = &self.form.codec else {
            return Ok(prefixed(0, message));
        };
        let encoded = method.as_ref().map(|method| json::encode(method.input(), message));
        let encoded = encoded.unwrap_or_else(|| Ok(Vec::new()));
        Ok(prefixed(0, &encoded.map_err(|mismatch| invalid(mismatch.to_string()))?))
    }
}

fn invalid(problem: impl Into<String>) -> Status {
    status::of(InvalidField::new("request", problem))
}

impl Body for Message {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        let message = ready!(self.poll_message(cx));
        self.is_done = true;
        Poll::Ready(Some(message.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_done
    }
}
