//! Messages as JSON, in the Protobuf JSON mapping.
//!
//! All fields are present except unset messages. As in the mapping, names are in camelCase, durations are like `"1.5s"`
//! and 64-bit numbers are strings.

use std::error::Error;
use std::sync::LazyLock;

use prost::Message;
pub use prost::Name as Answer;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost_reflect::{
    DescriptorError, DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, MethodDescriptor,
    SerializeOptions,
};
use tokio::task::yield_now;

use super::proto;

/// The descriptors, decoded once.
static POOL: LazyLock<Result<DescriptorPool, DescriptorError>> = LazyLock::new(|| {
    let mut pool = DescriptorPool::decode(proto::DESCRIPTORS)?;
    pool.decode_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)?;
    // The details of errors.
    pool.decode_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)?;
    Ok(pool)
});

/// How many encoded bytes are converted in one piece.
pub(super) const PIECE_BYTES: usize = 16 << 10;

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

/// The same in pieces, between which other tasks run: a page of locks would occupy a processor for long.
///
/// # Errors
/// As [`line()`].
///
/// # Cancellation safety
/// If dropped, nothing was converted.
pub(super) async fn line_in_pieces(message: MessageDescriptor, encoded: &[u8]) -> Result<Vec<u8>, Mismatch> {
    let list = message.get_field(1).filter(|field| field.is_list());
    let element = list.as_ref().and_then(|list| list.kind().as_message().cloned());
    let (Some(list), Some(element)) = (list, element.filter(|_| encoded.len() > PIECE_BYTES)) else {
        return line(message, encoded);
    };
    let (elements, others) = split(encoded)?;
    let others = line(message.clone(), &others)?;
    let mut begin = format!("{{\"{}\":[]", list.json_name());
    let Some(end) = others.strip_prefix(begin.as_bytes()) else {
        return line(message, encoded);
    };
    begin.pop();
    let (mut line_of_all, mut piece) = (begin.into_bytes(), 0);
    for (number, encoded) in elements.into_iter().enumerate() {
        if number > 0 {
            line_of_all.push(b',');
        }
        line_of_all.extend(line(element.clone(), encoded)?);
        piece += encoded.len();
        if piece >= PIECE_BYTES {
            piece = 0;
            yield_now().await;
        }
    }
    line_of_all.push(b']');
    line_of_all.extend(end);
    Ok(line_of_all)
}

/// The elements of the list in field 1, and the other fields.
fn split(mut encoded: &[u8]) -> Result<(Vec<&[u8]>, Vec<u8>), Mismatch> {
    let (mut elements, mut others) = (Vec::new(), Vec::new());
    while !encoded.is_empty() {
        let field = encoded;
        let (number, wire_type) = decode_key(&mut encoded)?;
        if number == 1 && wire_type == WireType::LengthDelimited {
            let length = usize::try_from(decode_varint(&mut encoded)?)?;
            let (element, rest) = encoded.split_at_checked(length).ok_or("a field is cut off")?;
            elements.push(element);
            encoded = rest;
        } else {
            skip_field(wire_type, number, &mut encoded, DecodeContext::default())?;
            others.extend(&field[..field.len() - encoded.len()]);
        }
    }
    Ok((elements, others))
}

/// Converts an encoded message to a JSON value.
///
/// # Errors
/// As [`line()`].
pub(super) fn value(message: MessageDescriptor, encoded: &[u8]) -> Result<serde_json::Value, Mismatch> {
    let dynamic = DynamicMessage::decode(message, encoded)?;
    Ok(dynamic.serialize_with_options(serde_json::value::Serializer, &all_fields())?)
}

/// Encodes the message that a JSON text describes. Unknown fields and names of enums are ignored, so that a client of a
/// later release can call this server, as in Protobuf's own encoding.
///
/// # Errors
/// [`Mismatch`] with the position in the text.
pub(super) fn encode(message: MessageDescriptor, text: &[u8]) -> Result<Vec<u8>, Mismatch> {
    let mut text = serde_json::Deserializer::from_slice(text);
    let dynamic = DynamicMessage::deserialize_with_options(message, &mut text, &KNOWN_FIELDS)?;
    text.end()?;
    Ok(dynamic.encode_to_vec())
}

/// Only the fields that are known here are read.
const KNOWN_FIELDS: DeserializeOptions = DeserializeOptions::new().deny_unknown_fields(false);

fn all_fields() -> SerializeOptions {
    SerializeOptions::new().skip_default_fields(false)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_page_in_pieces_is_what_it_is_as_a_whole_and_other_tasks_run_between_them() {
        let summary = |number: usize| proto::LockSummary {
            name: format!("lock/{number}/{}", "\u{e9}".repeat(20)),
            holder_count: 1,
            ..proto::LockSummary::default()
        };
        for (locks, next_page_token) in [(0, ""), (3, "more"), (1_000, "more"), (1_000, "")] {
            let page = proto::ListLocksResponse {
                locks: (0..locks).map(summary).collect(),
                next_page_token: next_page_token.into(),
            };
            let message = message(&proto::ListLocksResponse::full_name()).unwrap();
            let encoded = page.encode_to_vec();
            let whole = line(message.clone(), &encoded).unwrap();
            let mut pieces = Box::pin(line_in_pieces(message, &encoded));
            let mut yields = 0;
            let in_pieces = loop {
                match (&mut pieces).now_or_never() {
                    Some(line) => break line.unwrap(),
                    None => yields += 1,
                }
            };
            assert_eq!(String::from_utf8(in_pieces), String::from_utf8(whole));
            assert_eq!(yields, encoded.len() / PIECE_BYTES, "{locks}");
        }
    }
}
