//! The gRPC calls of the page.

use bytes::{Buf, BufMut, Bytes};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Request, Status, Streaming};

use super::Limits;
use crate::api::connection::Remote;
use crate::api::layer::CallService;
use crate::api::request_log::REQUEST_ID;
use crate::api::{json, status};

/// Makes the calls of one connection.
#[derive(Debug, Clone)]
pub(super) struct Calls<S> {
    pub service: S,
    /// The limits of the server.
    pub limits: Limits,
    /// The client.
    pub remote: Remote,
}

impl<S: CallService> Calls<S> {
    /// Makes a call with the credentials in these headers. Its messages are not decoded.
    ///
    /// # Errors
    /// The status of a call that failed before its first message.
    ///
    /// # Cancellation safety
    /// If dropped, the call is cancelled.
    pub(super) async fn call(
        &mut self,
        path: &'static str,
        headers: &HeaderMap,
        message: Vec<u8>,
    ) -> Result<Streaming<Bytes>, Status> {
        let mut own = HeaderMap::new();
        for name in [AUTHORIZATION, REQUEST_ID] {
            for value in headers.get_all(&name) {
                own.append(&name, value.clone());
            }
        }
        let mut extensions = Extensions::new();
        extensions.insert(self.remote.clone());
        let request = Request::from_parts(MetadataMap::from_headers(own), extensions, message.into());
        let mut service = Grpc::new(self.service.clone()).max_decoding_message_size(usize::MAX);
        let Ok(()) = service.ready().await;
        let path = PathAndQuery::from_static(path);
        Ok(service.server_streaming(request, path, Encoded).await?.into_inner())
    }

    /// [`Self::call`] of a method whose answer is one message.
    ///
    /// # Errors
    /// The status of a call that failed.
    pub(super) async fn unary(
        &mut self,
        path: &'static str,
        headers: &HeaderMap,
        message: Vec<u8>,
    ) -> Result<Bytes, Status> {
        let mut messages = self.call(path, headers, message).await?;
        let only = messages.message().await?.unwrap_or_default();
        // The status follows the message.
        while messages.message().await?.is_some() {}
        Ok(only)
    }
}

/// A stream that waits for its next message keeps no buffer: each message reserves its own length. The second number is
/// tonic's own.
fn no_spare() -> BufferSettings {
    BufferSettings::new(0, 32 * 1024)
}

/// The codec of messages that stay encoded.
#[derive(Debug, Clone, Copy)]
struct Encoded;

impl Codec for Encoded {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        no_spare()
    }
}

impl Decoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        no_spare()
    }
}

/// An answer that its own descriptor does not describe.
#[derive(Debug, thiserror::Error)]
#[error("an answer cannot be converted to JSON: {0}")]
struct NoJson(json::Mismatch);

/// The status of an answer that cannot be converted to JSON.
pub(super) fn json_bug(mismatch: json::Mismatch) -> Status {
    status::internal(NoJson(mismatch))
}
