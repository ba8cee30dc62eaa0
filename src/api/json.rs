//! Messages as JSON, in the Protobuf JSON mapping.
//!
//! All fields are present except unset messages. As in the mapping, names are in camelCase, durations are like `"1.5s"`
//! and 64-bit numbers are strings.

use std::error::Error;
use std::sync::LazyLock;

use prost::Message;
pub use prost::Name as Answer;
use prost_reflect::{
    DescriptorError, DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions,
};

use super::proto;

/// The descriptors, decoded once.
static POOL: LazyLock<Result<DescriptorPool, DescriptorError>> = LazyLock::new(|| {
    let mut pool = DescriptorPool::decode(proto::DESCRIPTORS)?;
    pool.decode_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)?;
    // The details of errors.
    pool.decode_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)?;
    Ok(pool)
});

/// A response that does not match the API's descriptors, which is a bug.
#[derive(Debug, thiserror::Error)]
#[error("a response cannot be converted to JSON")]
pub struct NoJson(#[source] Mismatch);

/// Converts a response to one line of JSON.
///
/// # Errors
/// [`NoJson`]; never for the messages of this API.
pub fn json<A: Answer>(answer: &A) -> Result<String, NoJson> {
    let encode = || {
        let message = message(&A::full_name()).ok_or(A::NAME)?;
        Ok(String::from_utf8(line(message, &answer.encode_to_vec())?)?)
    };
    encode().map_err(NoJson)
}

/// A message or text that does not match its descriptor.
pub(crate) type Mismatch = Box<dyn Error + Send + Sync>;

/// The message of this full name, such as `fencepost.v1.Lease`.
pub(crate) fn message(name: &str) -> Option<MessageDescriptor> {
    POOL.as_ref().ok()?.get_message_by_name(name)
}

/// The method at this path, such as `/fencepost.v1.LockService/Acquire`.
pub(super) fn method(path: &str) -> Option<MethodDescriptor> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let service = POOL.as_ref().ok()?.get_service_by_name(service)?;
    service.methods().find(|found| found.name() == method)
}

/// Converts an encoded message to one line of JSON.
///
/// # Errors
/// [`Mismatch`]; never for a message of this API.
pub(crate) fn line(message: MessageDescriptor, encoded: &[u8]) -> Result<Vec<u8>, Mismatch> {
    let dynamic = DynamicMessage::decode(message, encoded)?;
    let mut line = Vec::new();
    dynamic.serialize_with_options(&mut serde_json::Serializer::new(&mut line), &all_fields())?;
    Ok(line)
}

/// Converts an encoded message to a JSON value.
///
/// # Errors
/// As [`line()`].
pub(super) fn value(message: MessageDescriptor, encoded: &[u8]) -> Result<serde_json::Value, Mismatch> {
    let dynamic = DynamicMessage::decode(message, encoded)?;
    Ok(dynamic.serialize_with_options(serde_json::value::Serializer, &all_fields())?)
}

/// Encodes the message that a JSON text describes. Unknown fields are refused.
///
/// # Errors
/// [`Mismatch`] with the position in the text.
pub(super) fn encode(message: MessageDescriptor, text: &[u8]) -> Result<Vec<u8>, Mismatch> {
    let mut text = serde_json::Deserializer::from_slice(text);
    let dynamic = DynamicMessage::deserialize(message, &mut text)?;
    text.end()?;
    Ok(dynamic.encode_to_vec())
}

fn all_fields() -> SerializeOptions {
    SerializeOptions::new().skip_default_fields(false)
}
