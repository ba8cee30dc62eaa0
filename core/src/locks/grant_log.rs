//! The log of grants and of their ends, where the configuration wants one: a line each, with the target [`GRANTS`].
//!
//! The server that ends a lease logs its end. The server that granted a lease logs its expiry, once the store says that
//! it has ended so: another server may have renewed or released it meanwhile.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{Lease, Locks, NamespaceState, UndeliveredGrant};
use crate::backend::{Backend, BackendError, RenewOutcome};
use crate::claim::Cause;
use crate::name::{CallId, FencingToken, Identity, LeaseKey, LockName, Owner, Secret};

/// The target of the log of grants and of their ends.
pub const GRANTS: &str = "fencepost::grants";

/// Whether grants and their ends are logged.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// Whether grants and their ends are logged.
pub fn logs_grants() -> bool {
    IS_WANTED.load(Ordering::Relaxed)
}

/// Logs grants and their ends from now on, or no longer.
pub fn log_grants(is_wanted: bool) {
    IS_WANTED.store(is_wanted, Ordering::Relaxed);
}

/// How many leases are known whose ends are logged with their holder.
const LEASES: usize = 200_000;
/// The interval of looks for leases that have expired.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long after the end of a TTL the store is asked.
const AFTER_END: Duration = Duration::from_millis(500);

/// Who asks for a lock, for the log.
#[derive(Debug)]
pub struct Applicant {
    /// The lock.
    pub lock: LockName,
    /// The owner label that it chose.
    pub owner: Owner,
    /// Its authenticated identity.
    pub identity: Identity,
    /// Its address.
    pub peer: Option<String>,
    /// The id of the call in the log of calls.
    pub request_id: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct GrantLog {
    /// The store itself: what the log asks is no operation of a client.
    store: Arc<dyn Backend>,
    held: Mutex<HashMap<Secret, LoggedLease>>,
}

/// A lease whose grant is in the log.
#[derive(Debug, Clone)]
struct LoggedLease {
    key: LeaseKey,
    call: CallId,
    holder: Arc<Applicant>,
    since: Instant,
    /// When it has expired, as far as this server knows.
    end: Instant,
}

impl GrantLog {
    pub(super) fn new(store: Arc<dyn Backend>) -> Self {
        let held = Mutex::default();
        Self { store, held }
    }

    /// Logs the release of a lease, after which its lock is kept for a while.
    pub(super) fn released(&self, key: &LeaseKey, kept_for: Option<Duration>) {
        if !self.is_idle() {
            let lease = self.held.lock().remove(&key.secret);
            log_end("released", key, lease.as_ref(), kept_for);
        }
    }

    /// Logs the undo of a call that had been granted a lease.
    pub(super) fn undone(&self, call: CallId) {
        self.end_all("undone", |lease| lease.call == call);
    }

    /// Logs the ends of all holds of a token.
    pub(super) fn forced(&self, lock: &LockName, token: FencingToken) {
        self.end_all("forced", |lease| {
            lease.key.lock.name == *lock && lease.key.token == token
        });
    }

    /// Notes the end of a lease that was renewed.
    pub(super) fn renewed(&self, lease: &Lease) {
        if let Some(logged) = self.held.lock().get_mut(&lease.key.secret) {
            logged.end = Instant::now() + lease.ttl;
        }
    }

    /// Whether no lease is known and none is to be logged.
    fn is_idle(&self) -> bool {
        !logs_grants() && self.held.lock().is_empty()
    }

    fn end_all(&self, event: &'static str, is_ended: impl Fn(&LoggedLease) -> bool) {
        let mut held = self.held.lock();
        let ended: Vec<_> = held.extract_if(|_, lease| is_ended(lease)).collect();
        drop(held);
        for (_, lease) in ended {
            log_end(event, &lease.key, Some(&lease), None);
        }
    }

    fn add(&self, granted: LoggedLease) -> Added {
        let mut held = self.held.lock();
        if let Some(known) = held.get_mut(&granted.key.secret) {
            (known.call, known.end) = (granted.call, granted.end);
            return Added::Known;
        }
        let is_first = held.is_empty();
        if held.len() < LEASES {
            held.insert(granted.key.secret, granted);
        }
        if is_first { Added::First } else { Added::Further }
    }

    /// Asks the store about each lease whose TTL is over, and logs those that have expired.
    async fn look_for_expired(&self) {
        let is_over = |lease: &&LoggedLease| lease.end + AFTER_END <= Instant::now();
        let over: Vec<_> = self.held.lock().values().filter(is_over).cloned().collect();
        for lease in over {
            match self.state_of(&lease.key).await {
                Ok(State::HeldFor(left)) => {
                    if let Some(lease) = self.held.lock().get_mut(&lease.key.secret) {
                        lease.end = Instant::now() + left;
                    }
                }
                Ok(State::Ended(cause)) => {
                    let lease = self.held.lock().remove(&lease.key.secret);
                    if let (Some(lease), Some(Cause::Expired)) = (lease, cause) {
                        log_end("expired", &lease.key, Some(&lease), None);
                    }
                }
                // Asked again at the next look.
                Err(_) => return,
            }
        }
    }

    async fn state_of(&self, key: &LeaseKey) -> Result<State, BackendError> {
        if let Some(holder) = self.store.holder(&key.lock.name, key.token).await? {
            return Ok(State::HeldFor(holder.remaining));
        }
        // A token that is not held is never held again, so this renews nothing.
        match self.store.renew(key, None).await? {
            RenewOutcome::Renewed(grant) => Ok(State::HeldFor(grant.ttl)),
            RenewOutcome::Gone(cause) => Ok(State::Ended(cause)),
        }
    }
}

enum Added {
    First,
    Further,
    /// A repeated call has found its lease.
    Known,
}

enum State {
    HeldFor(Duration),
    Ended(Option<Cause>),
}

impl Locks {
    /// Logs a grant.
    pub fn log_grant(&self, granted: &UndeliveredGrant, holder: Box<Applicant>) {
        let (lease, now) = (&granted.lease, Instant::now());
        let logged = LoggedLease {
            key: lease.key.clone(),
            call: granted.undo.call_id(),
            holder: Arc::from(holder),
            since: now,
            end: now + lease.ttl,
        };
        let holder = Arc::clone(&logged.holder);
        match self.state.grant_log.add(logged) {
            Added::Known => return,
            Added::First => drop(self.state.runtime.spawn(look_while_held(Arc::downgrade(&self.state)))),
            Added::Further => {}
        }
        tracing::info!(
            target: GRANTS,
            event = "granted",
            namespace = self.state.namespace.as_str(),
            lock = holder.lock.as_str(),
            token = lease.key.token.get(),
            owner = holder.owner.as_str(),
            identity = holder.identity.as_str(),
            peer = holder.peer,
            request_id = holder.request_id,
            waited_ms = milliseconds(lease.waited),
            ttl_ms = milliseconds(lease.ttl),
        );
    }

    /// Logs a wait that ran out.
    pub fn log_wait_timeout(&self, applicant: &Applicant, waited: Duration) {
        tracing::info!(
            target: GRANTS,
            event = "wait_timeout",
            namespace = self.state.namespace.as_str(),
            lock = applicant.lock.as_str(),
            owner = applicant.owner.as_str(),
            identity = applicant.identity.as_str(),
            peer = applicant.peer,
            request_id = applicant.request_id,
            waited_ms = milliseconds(waited),
        );
    }
}

/// Looks for expired leases until none is held whose grant was logged.
async fn look_while_held(state: Weak<NamespaceState>) {
    loop {
        sleep(LOOK_INTERVAL).await;
        let Some(state) = state.upgrade() else { return };
        state.grant_log.look_for_expired().await;
        if state.grant_log.held.lock().is_empty() {
            return;
        }
    }
}

/// Logs an end: with its holder if this server granted the lease.
fn log_end(event: &'static str, key: &LeaseKey, lease: Option<&LoggedLease>, kept_for: Option<Duration>) {
    let holder = lease.map(|lease| &*lease.holder);
    tracing::info!(
        target: GRANTS,
        event,
        namespace = key.lock.namespace.as_str(),
        lock = key.lock.name.as_str(),
        token = key.token.get(),
        owner = holder.map(|holder| holder.owner.as_str()),
        identity = holder.map(|holder| holder.identity.as_str()),
        peer = holder.and_then(|holder| holder.peer.as_deref()),
        request_id = holder.and_then(|holder| holder.request_id.as_deref()),
        held_ms = lease.map(|lease| milliseconds(lease.since.elapsed())),
        kept_for_ms = kept_for.map(milliseconds),
    );
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
