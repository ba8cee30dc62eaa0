//! Responses as JSON, in the Protobuf JSON mapping.

use std::error::Error;
use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorError, DescriptorPool, DynamicMessage, SerializeOptions};

use crate::api::proto;

/// A message that can be converted to JSON.
pub trait Answer: Message {
    /// Its name in the API.
    const NAME: &'static str;
}

/// Implements [`Answer`] for messages, each under its own name.
macro_rules! answers {
    ($($message:ident),* $(,)?) => {
        $(impl Answer for proto::$message {
            const NAME: &'static str = concat!("fencepost.v1.", stringify!($message));
        })*
    };
}

answers!(
    AdmitResponse,
    CheckTokenResponse,
    Lease,
    LockState,
    LockSummary,
    NamespaceInfo,
    ObserveResponse,
    ReleaseResponse,
    ForceReleaseResponse,
    UpdateMetadataResponse,
    WatchLockResponse,
);

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
    let pool = POOL.as_ref().map_err(ToString::to_string)?;
    let message = pool.get_message_by_name(A::NAME).ok_or(A::NAME)?;
    let dynamic = DynamicMessage::decode(message, &*answer.encode_to_vec())?;
    let mut line = Vec::new();
    let mut writer = serde_json::Serializer::new(&mut line);
    let options = SerializeOptions::new().skip_default_fields(false);
    dynamic.serialize_with_options(&mut writer, &options)?;
    Ok(String::from_utf8(line)?)
}

/// The descriptors, decoded once.
static POOL: LazyLock<Result<DescriptorPool, DescriptorError>> =
    LazyLock::new(|| DescriptorPool::decode(proto::DESCRIPTORS));
