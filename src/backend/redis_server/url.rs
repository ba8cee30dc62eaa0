//! The URL of a server.

use redis::{ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisResult};

/// Reads a URL (`redis://`, `rediss://`, `unix://`); RESP3 is spoken whatever it says.
///
/// # Errors
/// What the client says about a URL that it cannot read.
pub fn connection_info(url: &str) -> RedisResult<ConnectionInfo> {
    let info = url.into_connection_info()?;
    let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_redis_settings(redis))
}
