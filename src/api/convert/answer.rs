//! Types to messages.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use prost::Message;
use tokio::time::Instant;

use super::super::settings::Settings;
use super::proto;
use crate::backend::{Change, ChangeKind, Guarantee, Health, Capabilities, LockSummary};
use crate::claim::{Cause, Holder, Queue, Waiter};
use crate::limits::Limits;
use crate::locks::{Lease, Locks};
use crate::name::{FencingToken, LockName, Metadata, Mode, Namespace};

/// How much of a long queue one message shows; its counts tell the rest.
#[derive(Debug, Clone, Copy)]
pub(in crate::api) struct Bounds {
    /// How many holders, and how many waiters.
    pub claims: usize,
    /// How many bytes all of them together take.
    pub bytes: usize,
}

impl Bounds {
    /// What the settings allow, and surely fits into an answer: the rest of the message takes well below a
    /// quarter of it.
    pub(in crate::api) fn of(settings: &Settings) -> Self {
        Self {
            claims: 1000,
            bytes: settings.state_bytes.min(settings.response_bytes / 4 * 3),
        }
    }
}

/// A lease with its id, for its client alone.
pub(in crate::api) fn lease(lease: &Lease) -> proto::Lease {
    proto::Lease {
        lease_id: lease.key.to_lease_id(),
        fencing_token: lease.key.token.get(),
        ttl: Some(wire_duration(lease.ttl)),
        waited: Some(wire_duration(lease.waited)),
        namespace: lease.key.lock.namespace.as_str().into(),
        name: lease.key.lock.name.as_str().into(),
        owner: lease.owner.as_str().into(),
        guarantee: guarantee(lease.guarantee).into(),
        holds: lease.holds,
    }
}

/// A queue as far as it fits: holders first.
pub(in crate::api) fn lock_state(
    namespace: &Namespace,
    name: &LockName,
    queue: &Queue,
    bounds: Bounds,
) -> proto::LockState {
    let mut room = bounds.bytes;
    let holders = fitting(queue.holders.iter().take(bounds.claims).map(holder), &mut room);
    let waiters = fitting(queue.waiters.iter().take(bounds.claims).map(waiter), &mut room);
    proto::LockState {
        namespace: namespace.as_str().into(),
        name: name.as_str().into(),
        holders,
        waiters,
        holder_count: count(queue.holder_count),
        waiter_count: count(queue.waiter_count),
    }
}

/// A lock of a list; the metadata of its holder is left to GetLock, so that a page stays small.
pub(in crate::api) fn summary(summary: &LockSummary) -> proto::LockSummary {
    proto::LockSummary {
        name: summary.lock.as_str().into(),
        holder_count: count(summary.holders),
        waiter_count: count(summary.waiters),
        first_holder: summary.first.as_ref().map(|first| proto::Holder {
            metadata: BTreeMap::new(),
            ..holder(first)
        }),
    }
}

/// One change of a lock's queue.
pub(in crate::api) fn change(change: &Change) -> proto::LockChange {
    proto::LockChange {
        kind: change_kind(change.kind).into(),
        owner: change.owner.as_str().into(),
        fencing_token: wire_token(change.token),
        holder_count: count(change.holders),
        waiter_count: count(change.waiters),
    }
}

/// Whether a token is held, and by whom.
pub(in crate::api) fn checked(holder: Option<&Holder>) -> proto::CheckTokenResponse {
    proto::CheckTokenResponse {
        held: holder.is_some(),
        owner: holder.map(|holder| holder.owner.as_str().into()).unwrap_or_default(),
        remaining_ttl: holder.map(|holder| wire_duration(holder.remaining)),
    }
}

/// One namespace, as operators see it.
pub(in crate::api) fn namespace(locks: &Locks) -> proto::NamespaceInfo {
    let capabilities = locks.capabilities();
    let (health, reason, quarantine_left) = health(&locks.health().borrow());
    proto::NamespaceInfo {
        name: locks.namespace().as_str().into(),
        backend: capabilities.kind.into(),
        guarantee: guarantee(capabilities.guarantee).into(),
        limits: Some(limits(&locks.limits())),
        health: health.into(),
        reason,
        quarantine_left,
        modes: modes(capabilities),
        reentry: capabilities.reentry,
        remembers_requests: capabilities.remembers_requests,
        nodes: locks.nodes().into_iter().map(node).collect(),
    }
}

/// One of the nodes that decide together.
fn node((name, is): (String, Health)) -> proto::NodeInfo {
    let (health, reason, quarantine_left) = health(&is);
    proto::NodeInfo {
        name,
        health: health.into(),
        reason,
        quarantine_left,
    }
}

/// A namespace's limits.
fn limits(limits: &Limits) -> proto::NamespaceLimits {
    proto::NamespaceLimits {
        min_ttl: Some(wire_duration(limits.ttl_min)),
        default_ttl: Some(wire_duration(limits.ttl_default)),
        max_ttl: Some(wire_duration(limits.ttl_max)),
        max_wait: Some(wire_duration(limits.wait_max)),
        queue_limit: limits.queue,
        name_limit: limits.name_bytes,
        finished_limit: limits.finished,
        hold_limit: limits.holds,
    }
}

/// How a store is: its health, why it does not serve, and how long its quarantine still lasts.
fn health(health: &Health) -> (proto::NamespaceHealth, String, Option<prost_types::Duration>) {
    match health {
        Health::Serving => (proto::NamespaceHealth::Serving, String::new(), None),
        Health::Unavailable { reason } => (proto::NamespaceHealth::Away, reason.clone(), None),
        Health::Quarantined { until, reason } => {
            let left = until.saturating_duration_since(Instant::now());
            (
                proto::NamespaceHealth::Quarantined,
                reason.clone(),
                Some(wire_duration(left)),
            )
        }
    }
}

/// The modes that a backend offers.
fn modes(capabilities: Capabilities) -> Vec<String> {
    let words = ["exclusive", "shared", "semaphore"];
    let offered = if capabilities.sharing { words.len() } else { 1 };
    words.iter().take(offered).map(ToString::to_string).collect()
}

/// What a store promises.
fn guarantee(guarantee: Guarantee) -> proto::Guarantee {
    match guarantee {
        Guarantee::Ap => proto::Guarantee::Ap,
        Guarantee::Cp => proto::Guarantee::Cp,
    }
}

/// A duration as a message; one beyond protobuf's range becomes its largest.
fn wire_duration(duration: Duration) -> prost_types::Duration {
    let largest = Duration::from_secs(super::MAX_SECONDS.unsigned_abs());
    let shown = duration.min(largest);
    prost_types::Duration {
        seconds: shown.as_secs().cast_signed(),
        nanos: shown.subsec_nanos().cast_signed(),
    }
}

/// A token as a number; zero for a claim that never held.
fn wire_token(token: Option<FencingToken>) -> u64 {
    token.map_or(0, FencingToken::get)
}

/// Takes messages while they fit into `room` bytes, which it lowers by what they take.
fn fitting<M: Message>(messages: impl Iterator<Item = M>, room: &mut usize) -> Vec<M> {
    // A message in a list takes a tag and its length beside itself.
    const FRAME_BYTES: usize = 6;
    messages
        .map_while(|message| {
            *room = room.checked_sub(message.encoded_len() + FRAME_BYTES)?;
            Some(message)
        })
        .collect()
}

fn holder(holder: &Holder) -> proto::Holder {
    proto::Holder {
        owner: holder.owner.as_str().into(),
        fencing_token: holder.token.get(),
        remaining_ttl: Some(wire_duration(holder.remaining)),
        mode: Some(mode(holder.mode)),
        holds: holder.holds,
        metadata: metadata(&holder.metadata),
        since: Some(timestamp(holder.since)),
        identity: holder.identity.as_str().into(),
    }
}

fn waiter(waiter: &Waiter) -> proto::Waiter {
    proto::Waiter {
        owner: waiter.owner.as_str().into(),
        mode: Some(mode(waiter.mode)),
        metadata: metadata(&waiter.metadata),
        since: Some(timestamp(waiter.since)),
        identity: waiter.identity.as_str().into(),
    }
}

fn mode(mode: Mode) -> proto::Mode {
    use proto::mode::{Exclusive, Kind, Semaphore, Shared};
    let kind = match mode {
        Mode::Exclusive => Kind::Exclusive(Exclusive {}),
        Mode::Shared => Kind::Shared(Shared {}),
        Mode::Semaphore { permits, limit } => Kind::Semaphore(Semaphore { permits, limit }),
    };
    proto::Mode { kind: Some(kind) }
}

fn change_kind(kind: ChangeKind) -> proto::ChangeKind {
    match kind {
        ChangeKind::Queued => proto::ChangeKind::Queued,
        ChangeKind::Granted => proto::ChangeKind::Granted,
        ChangeKind::Ended(Cause::Released) => proto::ChangeKind::Released,
        ChangeKind::Ended(Cause::Expired) => proto::ChangeKind::Expired,
        ChangeKind::Ended(Cause::Forced) => proto::ChangeKind::Forced,
        ChangeKind::Ended(Cause::TakenBack | Cause::Left) => proto::ChangeKind::Left,
    }
}

fn metadata(metadata: &Metadata) -> BTreeMap<String, String> {
    metadata.entries().iter().cloned().collect()
}

/// Display only; a clock before 1970 or beyond protobuf's range shows as the nearest end.
fn timestamp(at: SystemTime) -> prost_types::Timestamp {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let prost_types::Duration { seconds, nanos } = wire_duration(since);
    prost_types::Timestamp { seconds, nanos }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
