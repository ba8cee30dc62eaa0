//! Responses as JSON, in the Protobuf JSON mapping.

use std::error::Error;

pub use prost::Name as Answer;

use crate::api::json;

/// A response that does not match the API's descriptors, which is a bug.
#[derive(Debug, thiserror::Error)]
#[error("a response cannot be converted to JSON")]
pub struct NoJson(#[source] Box<dyn Error + Send + Sync>);

/// Converts a message to one line of JSON. All fields are present except unset messages. As in the
/// Protobuf mapping, names are in camelCase, durations are like `"1.5s"` and 64-bit numbers are
/// strings.
///
/// # Errors
/// [`NoJson`]; never for the messages of this API.
pub fn json<A: Answer>(answer: &A) -> Result<String, NoJson> {
    encode(answer).map_err(NoJson)
}

fn encode<A: Answer>(answer: &A) -> Result<String, Box<dyn Error + Send + Sync>> {
    let message = json::message(&A::full_name()).ok_or(A::NAME)?;
    Ok(String::from_utf8(json::line(message, &answer.encode_to_vec())?)?)
}
