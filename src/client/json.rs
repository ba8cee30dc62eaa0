//! Answers as JSON: the names and forms that Protobuf gives each field.

use std::error::Error;
use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorError, DescriptorPool, DynamicMessage, SerializeOptions};

use crate::api::proto;

/// A message that is shown as JSON.
pub trait Answer: Message {
    /// Its name in the API.
    const NAME: &'static str;
}

/// Messages that are shown, each under its own name.
macro_rules! answers {
    ($($message:ident),* $(,)?) => {
        $(impl Answer for proto::$message {
            const NAME: &'static str = concat!("fencepost.v1.", stringify!($message));
        })*
    };
}

answers!(
    CheckTokenResponse,
    Lease,
    ListLocksResponse,
    ListNamespacesResponse,
    LockState,
    ReleaseResponse,
    ForceReleaseResponse,
    WatchLockResponse,
);

/// An answer that is not what the API's descriptors say: a bug.
#[derive(Debug, thiserror::Error)]
#[error("an answer cannot be shown as JSON")]
pub struct NoJson(#[source] Box<dyn Error + Send + Sync>);

/// A message in one line of JSON, with all its fields but the messages that it has not. As Protobuf
/// maps them: names in camelCase, times as `"1.5s"`, 64-bit numbers as text.
///
/// # Errors
/// [`NoJson`], never for the messages of this API.
pub fn json<A: Answer>(answer: &A) -> Result<String, NoJson> {
    written(answer).map_err(NoJson)
}

fn written<A: Answer>(answer: &A) -> Result<String, Box<dyn Error + Send + Sync>> {
    let pool = POOL.as_ref().map_err(ToString::to_string)?;
    let message = pool.get_message_by_name(A::NAME).ok_or(A::NAME)?;
    let dynamic = DynamicMessage::decode(message, &*answer.encode_to_vec())?;
    let mut line = Vec::new();
    let mut writer = serde_json::Serializer::new(&mut line);
    let options = SerializeOptions::new().skip_default_fields(false);
    dynamic.serialize_with_options(&mut writer, &options)?;
    Ok(String::from_utf8(line)?)
}

/// The descriptors, read once.
static POOL: LazyLock<Result<DescriptorPool, DescriptorError>> =
    LazyLock::new(|| DescriptorPool::decode(proto::DESCRIPTORS));
