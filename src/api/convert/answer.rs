//! Converts types to messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost::Message;
use tokio::time::Instant;

use super::super::open_streams::StreamState;
use super::super::settings::Settings;
use super::proto;
use crate::backend::clock;
use crate::backend::{Capabilities, Change, ChangeKind, Guarantee, Health, LockSummary};
use crate::claim::{Cause, Holder, Queue, Waiter};
use crate::elections::Leader;
use crate::limits::Limits;
use crate::locks::{Lease, Locks};
use crate::name::{FencingToken, LockName, Metadata, Mode, Namespace};

/// How many locks of a stream are shown.
const KEPT_LOCKS: usize = 100;

/// How much of a long queue a message contains; its counts are complete.
#[derive(Debug, Clone, Copy)]
pub(in crate::api) struct Bounds {
    /// The maximum number of holders, and of waiters.
    pub claims: usize,
    /// The maximum size of all of them together, in bytes.
    pub bytes: usize,
}

impl Bounds {
    /// The bounds in the settings, limited so that the state fits into an answer: the rest of the
    /// message takes far less than a quarter of it.
    pub(in crate::api) fn of(settings: &Settings) -> Self {
        Self {
            claims: 1000,
            bytes: settings.state_bytes.min(settings.response_bytes / 4 * 3),
        }
    }
}

/// A lease with its id, for its own client only.
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

/// A queue as far as it fits; holders come first.
pub(in crate::api) fn lock_state(
    namespace: &Namespace,
    name: &LockName,
    queue: &Queue,
    bounds: Bounds,
) -> proto::LockState {
    let mut remaining = bounds.bytes;
    let holders = fitting(queue.holders.iter().take(bounds.claims).map(holder), &mut remaining);
    let waiters = fitting(queue.waiters.iter().take(bounds.claims).map(waiter), &mut remaining);
    proto::LockState {
        namespace: namespace.as_str().into(),
        name: name.as_str().into(),
        holders,
        waiters,
        holder_count: count(queue.holder_count),
        waiter_count: count(queue.waiter_count),
    }
}

/// A lock of a list. Its holder's metadata is omitted, so that a page stays small; GetLock returns
/// it.
pub(in crate::api) fn summary(summary: &LockSummary) -> proto::LockSummary {
    proto::LockSummary {
        name: summary.lock.as_str().into(),
        holder_count: count(summary.holders),
        waiter_count: count(summary.waiters),
        first_holder: summary.first.as_ref().map(|first| proto::Holder {
            metadata: BTreeMap::new(),
            ..holder(first)
        }),
        is_election: summary
            .first
            .as_ref()
            .is_some_and(|first| first.metadata.value().is_some()),
    }
}

/// The leader of an election.
pub(in crate::api) fn leader(leader: &Leader) -> proto::Leader {
    proto::Leader {
        candidate: leader.candidate.as_str().into(),
        fencing_token: leader.token.get(),
        value: leader.value.clone(),
        remaining_ttl: Some(wire_duration(leader.remaining)),
        since: Some(timestamp(leader.since)),
        identity: leader.identity.as_str().into(),
    }
}

/// One change of a lock's queue, which the server learned at this time.
pub(in crate::api) fn change(change: &Change, time: SystemTime) -> proto::LockChange {
    proto::LockChange {
        kind: change_kind(change.kind).into(),
        owner: change.claim.owner.as_str().into(),
        fencing_token: wire_token(change.token),
        holder_count: count(change.holders),
        waiter_count: count(change.waiters),
        metadata: metadata(&change.claim.metadata),
        identity: change.claim.identity.as_str().into(),
        time: Some(timestamp(time)),
    }
}

/// Whether a token is held, and by which owner.
pub(in crate::api) fn checked(holder: Option<&Holder>) -> proto::CheckTokenResponse {
    proto::CheckTokenResponse {
        held: holder.is_some(),
        owner: holder.map(|holder| holder.owner.as_str().into()).unwrap_or_default(),
        remaining_ttl: holder.map(|holder| wire_duration(holder.remaining)),
    }
}

/// One namespace, for operators.
pub(in crate::api) fn namespace(locks: &Locks) -> proto::NamespaceInfo {
    let capabilities = locks.capabilities();
    let (health, mut reason, quarantine_left) = health(&locks.health().borrow());
    if reason.is_empty() {
        let of_clock = || clock::wall_problem().map(Into::into);
        reason = locks.warning().or_else(of_clock).unwrap_or_default();
    }
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
        updates_metadata: capabilities.updates_metadata,
        nodes: locks.nodes().into_iter().map(node).collect(),
    }
}

/// Open streams that keep leases, for operators. Their locks take at most so many bytes together.
pub(in crate::api) fn sessions(states: &[Arc<StreamState>], mut bytes: usize) -> Vec<proto::SessionInfo> {
    states.iter().map(|state| session(state, &mut bytes)).collect()
}

fn session(state: &StreamState, bytes: &mut usize) -> proto::SessionInfo {
    let [commands_in_flight, waits] = state.counts().map(count);
    let client = state.client();
    let locks = state.leases.locks(KEPT_LOCKS).into_iter().map(|lock| proto::KeptLock {
        namespace: lock.namespace.as_str().into(),
        name: lock.name.as_str().into(),
    });
    proto::SessionInfo {
        number: state.number,
        kind: state.kind.into(),
        identity: state.identity.as_str().into(),
        peer: state.peer.map(|peer| peer.to_string()).unwrap_or_default(),
        since: Some(timestamp(state.since)),
        attached_leases: count(state.leases.len()),
        commands_in_flight,
        waits,
        unsent_bytes: state.unsent() as u64,
        locks: fitting(locks, bytes),
        client_name: client.map(|client| client.name.clone()).unwrap_or_default(),
        client_version: client.map(|client| client.version.clone()).unwrap_or_default(),
    }
}

/// One node of a quorum.
fn node((name, state): (String, Health)) -> proto::NodeInfo {
    let (health, reason, quarantine_left) = health(&state);
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
        ttl_min: Some(wire_duration(limits.ttl_min)),
        ttl_default: Some(wire_duration(limits.ttl_default)),
        ttl_max: Some(wire_duration(limits.ttl_max)),
        wait_max: Some(wire_duration(limits.wait_max)),
        queue_limit: limits.queue,
        name_limit: limits.name_bytes,
        finished_limit: limits.finished,
        hold_limit: limits.holds,
    }
}

/// A store's health, why it does not serve, and the remaining time of its quarantine.
fn health(health: &Health) -> (proto::NamespaceHealth, String, Option<prost_types::Duration>) {
    match health {
        Health::Serving => (proto::NamespaceHealth::Serving, String::new(), None),
        Health::Unavailable { reason } => (proto::NamespaceHealth::Unavailable, reason.clone(), None),
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

/// The modes that a backend supports.
fn modes(capabilities: Capabilities) -> Vec<String> {
    let modes = ["exclusive", "shared", "semaphore"];
    let offered = if capabilities.sharing { modes.len() } else { 1 };
    modes.iter().take(offered).map(ToString::to_string).collect()
}

/// What a store guarantees.
fn guarantee(guarantee: Guarantee) -> proto::Guarantee {
    match guarantee {
        Guarantee::Ap => proto::Guarantee::Ap,
        Guarantee::Cp => proto::Guarantee::Cp,
    }
}

/// A duration as a message; one beyond protobuf's range becomes its largest.
pub(in crate::api) fn wire_duration(duration: Duration) -> prost_types::Duration {
    let largest = Duration::from_secs(super::MAX_SECONDS.unsigned_abs());
    let bounded = duration.min(largest);
    prost_types::Duration {
        seconds: bounded.as_secs().cast_signed(),
        nanos: bounded.subsec_nanos().cast_signed(),
    }
}

/// A token as a number; zero for a claim that never held.
fn wire_token(token: Option<FencingToken>) -> u64 {
    token.map_or(0, FencingToken::get)
}

/// Takes messages while they fit into `remaining` bytes, and subtracts their sizes.
fn fitting<M: Message>(messages: impl Iterator<Item = M>, remaining: &mut usize) -> Vec<M> {
    // A message in a list also takes a tag and a length.
    const FRAME_BYTES: usize = 6;
    messages
        .map_while(|message| {
            *remaining = remaining.checked_sub(message.encoded_len() + FRAME_BYTES)?;
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
        ChangeKind::Updated => proto::ChangeKind::Updated,
        ChangeKind::Ended(Cause::Released) => proto::ChangeKind::Released,
        ChangeKind::Ended(Cause::Expired) => proto::ChangeKind::Expired,
        ChangeKind::Ended(Cause::Forced) => proto::ChangeKind::Forced,
        ChangeKind::Ended(Cause::Undone | Cause::Cancelled) => proto::ChangeKind::Left,
    }
}

fn metadata(metadata: &Metadata) -> BTreeMap<String, String> {
    metadata.entries().iter().cloned().collect()
}

/// For display only; a clock before 1970 or beyond protobuf's range becomes the nearest bound.
fn timestamp(at: SystemTime) -> prost_types::Timestamp {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let prost_types::Duration { seconds, nanos } = wire_duration(since);
    prost_types::Timestamp { seconds, nanos }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
