//! Converts messages to types, and types to messages.
//!
//! A converted value has valid characters and is within its fixed bounds; [`crate::limits::Limits`]
//! checks the limits of a namespace.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::proto;
use super::settings::Settings;
use crate::backend::PageRequest;
use crate::locks::{Acquire, LONGEST_GRACE};
use crate::name::{
    FencingToken, Identity, InvalidField, LockName, MAX_NAME_BYTES, MAX_OWNER_BYTES, Metadata, Mode, Owner, RequestId,
};

mod answer;

pub(super) use answer::{
    Bounds, change, checked, leader, lease, lock_state, namespace, sessions, summary, wire_duration,
};

/// The longest page token, in bytes: an encoded name and the store's additions.
const MAX_PAGE_TOKEN_BYTES: usize = 4096;
/// The maximum size of a lock in a list, in bytes: its name, its holder's owner and identity, and
/// the rest.
const SUMMARY_BYTES: usize = MAX_NAME_BYTES + 2 * MAX_OWNER_BYTES + 128;
/// The longest reason of an operator, in bytes.
const MAX_REASON_BYTES: usize = 256;
/// The longest name of a store's node, in bytes.
const MAX_NODE_BYTES: usize = 256;
/// The largest number of seconds in a protobuf Duration: some 10,000 years.
const MAX_SECONDS: i64 = 315_576_000_000;

/// Converts an Acquire request of `identity`.
pub(super) fn acquire(request: proto::AcquireRequest, identity: Identity) -> Result<Acquire, InvalidField> {
    Ok(Acquire {
        lock: LockName::new(&request.name)?,
        owner: Owner::new(&request.owner)?,
        identity,
        mode: request.mode.map_or(Ok(Mode::Exclusive), mode)?,
        ttl: ttl(request.ttl)?,
        wait: request.wait.map_or(Ok(Duration::ZERO), |wait| duration("wait", wait))?,
        request_id: request_id(&request.request_id)?,
        reentrant: request.reentrant,
        metadata: Metadata::new(request.metadata)?,
    })
}

/// Converts a mode, of which one kind must be set.
pub(super) fn mode(mode: proto::Mode) -> Result<Mode, InvalidField> {
    use proto::mode::Kind;
    match mode.kind {
        Some(Kind::Exclusive(_)) => Ok(Mode::Exclusive),
        Some(Kind::Shared(_)) => Ok(Mode::Shared),
        Some(Kind::Semaphore(semaphore)) => Mode::semaphore(semaphore.permits, semaphore.limit),
        None => Err(InvalidField::new(
            "mode",
            "must be exclusive, shared or semaphore, or be absent",
        )),
    }
}

/// Converts an optional TTL, which must be positive.
pub(super) fn ttl(ttl: Option<prost_types::Duration>) -> Result<Option<Duration>, InvalidField> {
    let ttl = ttl.map(|ttl| duration("ttl", ttl)).transpose()?;
    if ttl.is_some_and(|ttl| ttl.is_zero()) {
        return Err(InvalidField::new(
            "ttl",
            "must be positive, or be absent for the default",
        ));
    }
    Ok(ttl)
}

/// How long a release keeps its lock taken.
pub(super) fn keep_for(time: Option<prost_types::Duration>) -> Result<Duration, InvalidField> {
    Ok(time
        .map(|time| duration("keep_for", time))
        .transpose()?
        .unwrap_or_default())
}

/// How long a session that breaks off keeps what its calls have.
pub(super) fn grace(time: Option<prost_types::Duration>) -> Result<Duration, InvalidField> {
    let grace = time
        .map(|time| duration("grace", time))
        .transpose()?
        .unwrap_or_default();
    if grace > LONGEST_GRACE {
        let problem = format!("must be at most {} s", LONGEST_GRACE.as_secs());
        return Err(InvalidField::new("grace", problem));
    }
    Ok(grace)
}

/// Converts a duration that must be normalised, in the range of protobuf, and not negative.
fn duration(field: &'static str, wire: prost_types::Duration) -> Result<Duration, InvalidField> {
    let prost_types::Duration { seconds, nanos } = wire;
    let signs_agree = seconds == 0 || nanos == 0 || (seconds < 0) == (nanos < 0);
    if !(-MAX_SECONDS..=MAX_SECONDS).contains(&seconds) || nanos.unsigned_abs() >= 1_000_000_000 || !signs_agree {
        return Err(InvalidField::new(
            field,
            format!(
                "must be a normalised Duration: seconds within ±{MAX_SECONDS}, nanos below 1e9 and of the same sign, \
                 not {seconds} s and {nanos} ns"
            ),
        ));
    }
    match (u64::try_from(seconds), u32::try_from(nanos)) {
        (Ok(seconds), Ok(nanos)) => Ok(Duration::new(seconds, nanos)),
        _ => Err(InvalidField::new(
            field,
            format!("must not be negative, not {seconds} s and {nanos} ns"),
        )),
    }
}

/// Converts a lock's name and a token.
pub(super) fn lock_and_token(name: &str, token: u64) -> Result<(LockName, FencingToken), InvalidField> {
    Ok((LockName::new(name)?, FencingToken::new(token)?))
}

/// Checks the prefix of the names to list; empty means all.
pub(super) fn prefix(prefix: &str) -> Result<&str, InvalidField> {
    if prefix.len() > MAX_NAME_BYTES || prefix.chars().any(char::is_control) {
        return Err(InvalidField::new(
            "prefix",
            format!("must be at most {MAX_NAME_BYTES} bytes without control characters"),
        ));
    }
    Ok(prefix)
}

/// The sizes of pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pages {
    /// The size if the request does not set one.
    pub default: usize,
    /// The maximum size.
    pub limit: usize,
}

impl Pages {
    /// The sizes in the settings, limited so that a page always fits into an answer.
    pub(super) fn of(settings: &Settings) -> Self {
        let fitting = (settings.response_bytes / SUMMARY_BYTES).max(1);
        Self {
            default: settings.page_default.min(fitting),
            limit: settings.page_limit.min(fitting),
        }
    }
}

/// Converts the request for a page of the names with this prefix.
pub(super) fn page(size: i32, token: &str, prefix: &str, pages: Pages) -> Result<PageRequest, InvalidField> {
    let size = match usize::try_from(size) {
        Ok(0) => pages.default,
        Ok(size) => size.min(pages.limit),
        Err(_) => {
            return Err(InvalidField::new(
                "page_size",
                format!("must not be negative, not {size}"),
            ));
        }
    };
    let after = (!token.is_empty())
        .then(|| read_page_token(token, prefix))
        .transpose()?;
    Ok(PageRequest { after, size })
}

/// The number of the last stream on the page before; 0 for the first page.
pub(super) fn number_before(page: &PageRequest) -> Result<u64, InvalidField> {
    let number = page.after.as_deref().map_or(Ok(0), str::parse);
    number.map_err(|_| bad_page_token())
}

/// The page token for the next page; empty at the end.
pub(super) fn page_token(next: Option<&str>) -> String {
    next.map(|next| format!("1{}", utf8_percent_encode(next, NON_ALPHANUMERIC)))
        .unwrap_or_default()
}

/// Checks the name of a store's node in Admit; empty means the whole store.
pub(super) fn node(node: &str) -> Result<Option<&str>, InvalidField> {
    if node.len() > MAX_NODE_BYTES || node.chars().any(char::is_control) {
        return Err(InvalidField::new(
            "node",
            format!("must be at most {MAX_NODE_BYTES} bytes without control characters"),
        ));
    }
    Ok((!node.is_empty()).then_some(node))
}

/// Checks why an operator acts.
pub(super) fn check_reason(reason: &str) -> Result<(), InvalidField> {
    if reason.len() > MAX_REASON_BYTES || reason.chars().any(char::is_control) {
        let problem = format!("must be at most {MAX_REASON_BYTES} bytes without control characters");
        return Err(InvalidField::new("reason", problem));
    }
    Ok(())
}

/// The inverse of [`page_token`]; accepts only tokens that were issued for this prefix.
fn read_page_token(token: &str, prefix: &str) -> Result<String, InvalidField> {
    let read = || {
        let encoded = token
            .strip_prefix('1')
            .filter(|_| token.len() <= MAX_PAGE_TOKEN_BYTES)?;
        let text = percent_decode_str(encoded).decode_utf8().ok()?.into_owned();
        (page_token(Some(&text)) == token && text.starts_with(prefix)).then_some(text)
    };
    read().ok_or_else(bad_page_token)
}

fn bad_page_token() -> InvalidField {
    InvalidField::new(
        "page_token",
        "must be the next_page_token of the page before, unchanged and with the same prefix",
    )
}

fn request_id(text: &str) -> Result<Option<RequestId>, InvalidField> {
    (!text.is_empty()).then(|| RequestId::new(text)).transpose()
}

#[cfg(test)]
mod tests;
