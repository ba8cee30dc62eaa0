//! The session of a replica: an etcd lease that its waiting claims and cancel marks live on, and the token base.
//!
//! Every acquire, adoption and promotion compares that the session it was sent under still lives. So after the end of a
//! session all its late steps fail, and cancel marks need no time limit of their own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::keep_alive::{Alive, KeepAliveChannel, breaks, keep_alive_on};
use super::LeasePool;
use super::base::{Base, SessionKeys};
use crate::backend::clock::{TokenClock, is_usable, micros, wall};
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::cluster::checks::Condition;
use crate::backend::etcd::cluster::client::{ClusterClient, Connections};
use crate::backend::{BackendError, Health};

mod keep_alive;
mod open;

/// The pause before a retry while the store is unavailable.
const AGAIN: Duration = Duration::from_millis(200);
/// The pause before a retry while the wall clock is wrong.
const CLOCK_AGAIN: Duration = Duration::from_secs(1);
/// How often the cluster's status is read.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// After how many TTLs without an answered keep-alive over the connection of the calls a session ends, so that its
/// waiters do not block their queues.
const SILENT_TTLS: u32 = 2;

const LATER: &str = "etcd: a later release of this service grants in this namespace: replace this one";
const NO_SPACE: &str = "etcd: its space is used up (NOSPACE): nothing is granted until some is freed";

/// The session, token base and connection that a step is sent under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionEpoch {
    /// The session's lease.
    pub session: i64,
    /// The token base: it is added to a grant's revision.
    pub base: u64,
    /// The number of the connection that the token base was established over.
    pub connection: u64,
}

/// The current session, if any, and the connections so far.
#[derive(Debug, Clone, Copy, Default)]
struct SessionState {
    epoch: Option<SessionEpoch>,
    /// How many connections have broken. After each, the store may have been restored from a snapshot.
    connection: u64,
}

/// The sessions of one replica in one namespace, one after another.
pub struct Session {
    keys: SessionKeys,
    link: Arc<ClusterClient>,
    leases: Arc<LeasePool>,
    /// Discards what a restored store may have keys of.
    abandon: Box<dyn Fn() + Send + Sync>,
    /// Whether tokens may follow the wall clock.
    pub clock: TokenClock,
    ttl: Duration,
    request_timeout: Duration,
    state: watch::Sender<SessionState>,
    health: watch::Sender<Health>,
    /// The store takes no writes.
    full: AtomicBool,
    closed: CancellationToken,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Session {
    pub fn new(
        keys: SessionKeys,
        link: Arc<ClusterClient>,
        leases: Arc<LeasePool>,
        abandon: Box<dyn Fn() + Send + Sync>,
        ttl: Duration,
        request_timeout: Duration,
    ) -> Self {
        Self {
            keys,
            link,
            leases,
            abandon,
            clock: TokenClock::default(),
            ttl,
            request_timeout,
            state: watch::Sender::default(),
            health: watch::Sender::new(Health::unavailable("etcd: not connected yet")),
            full: AtomicBool::new(false),
            closed: CancellationToken::new(),
        }
    }

    /// Waits for the current session, for at most the request timeout.
    pub async fn epoch(&self) -> Result<SessionEpoch, Failure> {
        if self.closed.is_cancelled() {
            return Err(Failure::closed());
        }
        let mut state = self.state.subscribe();
        let current_epoch = state.wait_for(|state| self.current_epoch(state).is_some());
        let current_epoch = timeout(self.request_timeout, current_epoch).await;
        match current_epoch
            .ok()
            .and_then(Result::ok)
            .and_then(|state| self.current_epoch(&state))
        {
            Some(epoch) => Ok(epoch),
            None => Err(Failure::Unavailable(self.failure_reason())),
        }
    }

    /// The session for an acquire call. Fails if the store is full.
    ///
    /// # Errors
    /// [`Failure::NotSent`]: nothing was sent for the call.
    pub async fn ready(&self) -> Result<SessionEpoch, Failure> {
        self.has_space().map_err(Failure::unsent)?;
        self.epoch().await.map_err(Failure::unsent)
    }

    /// The current session, if its token base was established since the last connection broke.
    fn current_epoch(&self, state: &SessionState) -> Option<SessionEpoch> {
        let connection = state.connection + self.link.broken_connections();
        state.epoch.filter(|epoch| epoch.connection == connection)
    }

    /// The number of the current connection, which rises when one breaks.
    fn connection(&self) -> u64 {
        self.state.borrow().connection + self.link.broken_connections()
    }

    fn failure_reason(&self) -> String {
        match &*self.health.borrow() {
            Health::Unavailable { reason } => reason.clone(),
            _ => "etcd: no session".into(),
        }
    }

    /// Notes that a session ended.
    pub fn note_ended(&self, epoch: SessionEpoch) {
        self.state.send_if_modified(|state| {
            let over = state.epoch.take_if(|current| current.session == epoch.session);
            over.is_some()
        });
    }

    /// Whether no connection broke since this session epoch.
    pub fn is_connected(&self, epoch: SessionEpoch) -> bool {
        self.connection() == epoch.connection
    }

    /// Notes a broken connection: nothing is granted before the token base was established over the next one.
    fn note_broken_connection(&self) {
        self.state.send_modify(|state| state.connection += 1);
    }

    /// Notes a token base that another replica has raised, or a later release has closed. If its tokens would be beyond
    /// their range, the session ends, and the next one writes another base.
    pub fn rebase(&self, epoch: SessionEpoch, base: Base) {
        match base {
            Base::Open(base) if is_usable(base, self.link.revision().unsigned_abs()) => self.note_base(base, None),
            Base::Open(_) | Base::Closed => self.note_ended(epoch),
        }
    }

    fn note_base(&self, base: u64, established_over: Option<u64>) {
        self.state.send_if_modified(|state| {
            let Some(epoch) = &mut state.epoch else {
                return false;
            };
            let connection = established_over.unwrap_or(epoch.connection);
            let noted = SessionEpoch {
                base,
                connection,
                ..*epoch
            };
            std::mem::replace(epoch, noted) != noted
        });
    }

    /// Notes that the store's space is used up.
    pub fn note_full(&self) {
        self.set_full(true);
        self.note_serving();
    }

    /// Notes whether the store's space is used up, and logs when that begins and ends. Returns whether it changed.
    fn set_full(&self, full: bool) -> bool {
        let changed = self.full.swap(full, Ordering::AcqRel) != full;
        match full {
            _ if !changed => {}
            true => tracing::error!("etcd has no space left (NOSPACE): nothing is granted"),
            false => tracing::info!("etcd has space again"),
        }
        changed
    }

    /// Checks that the store accepts writes, as far as is known.
    ///
    /// # Errors
    /// [`Failure::Full`] while its space is used up.
    pub fn has_space(&self) -> Result<(), Failure> {
        match self.full.load(Ordering::Acquire) {
            true => Err(Failure::Full(NO_SPACE.into())),
            false => Ok(()),
        }
    }

    /// Sets the health of a live session: serving, unless the store's space is used up.
    fn note_serving(&self) {
        let health = match self.full.load(Ordering::Acquire) {
            true => Health::unavailable(NO_SPACE),
            false => Health::Serving,
        };
        Health::report(&self.health, health);
    }

    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Follows the wall clock although it is far ahead of the tokens, and waits until this replica serves.
    pub async fn admit_clock(&self) -> Result<(), BackendError> {
        self.clock.admit()?;
        self.epoch().await?;
        Ok(())
    }

    pub fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// Ends the session at once, and with it its waiting claims and cancel marks.
    pub async fn close(&self) {
        self.closed.cancel();
        let epoch = self.state.borrow().epoch;
        if let Some(epoch) = epoch {
            self.note_ended(epoch);
            // If that fails, it expires.
            let _ = self.leases.revoke(epoch.session).await;
        }
    }

    /// Keeps one session after another alive until this is closed. `lost` is called after each end of a session,
    /// because its waiting claims are gone.
    pub async fn run(self: Arc<Self>, lost: impl Fn()) {
        let run = async {
            loop {
                // Read before the stream opens, so that no change is missed.
                let changes = (self.link.restores(), self.link.connections());
                match self.open().await {
                    Ok((epoch, stream)) => {
                        self.state.send_modify(|state| state.epoch = Some(epoch));
                        self.note_serving();
                        let alive = Alive::now();
                        tokio::select! {
                            () = self.keep(epoch, stream, changes, &alive) => {}
                            () = self.keep_apart(epoch, &alive) => {}
                            () = self.check_again() => {}
                        }
                        self.note_ended(epoch);
                        // Deletes its keys at once; if that fails, they expire.
                        let leases = Arc::clone(&self.leases);
                        tokio::spawn(async move {
                            let revoked = leases.revoke(epoch.session).await;
                            tracing::info!(revoked = revoked.is_ok(), "the session in etcd ended");
                        });
                        lost();
                    }
                    Err(failure) => {
                        self.health.send_replace(Health::unavailable(failure));
                        // Each attempt makes and revokes a lease.
                        sleep(if self.clock.is_wrong() { CLOCK_AGAIN } else { AGAIN }).await;
                    }
                }
            }
        };
        self.closed.run_until_cancelled(run).await;
    }

    /// Reads the cluster's status every [`CHECK_EVERY`], and raises the token base if it is far behind the clock.
    async fn check_again(&self) {
        loop {
            sleep(CHECK_EVERY).await;
            self.raise_base().await;
            match Condition::of(&self.link, &self.keys.base()).await {
                Ok(condition) => self.note_space(&condition),
                Err(failure) => tracing::debug!(%failure, "the status of etcd cannot be read"),
            }
        }
    }

    /// Raises the token base if its tokens are far behind the clock, so that a later server can tell a wrong clock.
    async fn raise_base(&self) {
        let base = self.state.borrow().epoch.map(|epoch| epoch.base);
        let last = base.map(|base| base + self.link.revision().unsigned_abs());
        if last.is_some_and(|last| TokenClock::should_raise(micros(wall()), last)) {
            match self.establish_token_base().await {
                Ok(base) => self.note_base(base, None),
                Err(failure) => tracing::debug!(%failure, "the token base cannot be raised"),
            }
        }
    }

    fn note_space(&self, condition: &Condition) {
        if self.set_full(condition.full) {
            self.note_serving();
        }
    }

    /// Keeps the session alive over the connection of the calls, and notes when that connection breaks. Returns when
    /// the session has ended.
    async fn keep(
        &self,
        epoch: SessionEpoch,
        stream: KeepAliveChannel,
        (mut restores, mut connections): (watch::Receiver<u64>, watch::Receiver<Connections>),
        alive: &Alive,
    ) {
        let every = self.keep_alive_every();
        let mut answered = Instant::now();
        let mut stream = Some(stream);
        let mut over = self.state.subscribe();
        while alive.since() < self.ttl && answered.elapsed() < self.ttl * SILENT_TTLS {
            let sent = Instant::now();
            match timeout(every, self.send_keep_alive(&mut stream, epoch)).await {
                Ok(Ok(true)) => {
                    answered = sent;
                    alive.note(sent);
                }
                Ok(Ok(false)) => return,
                Ok(Err(failure)) => self.note_failure(&mut stream, &failure),
                Err(_) => {
                    let late = Failure::Unavailable("etcd: a keep-alive was not answered".into());
                    self.note_failure(&mut stream, &late);
                }
            }
            let pause = if stream.is_some() { every } else { AGAIN };
            let ended = over.wait_for(|now| now.epoch.is_none_or(|current| current.session != epoch.session));
            tokio::select! {
                _ = ended => return,
                _ = restores.changed() => {
                    tracing::warn!("etcd returned an older revision: it was restored from a snapshot");
                    return;
                }
                // Calls use another connection, so the keep-alives move to that one.
                _ = connections.changed() => stream = None,
                failure = breaks(&mut stream) => self.note_break(&failure),
                () = sleep(pause) => {}
            }
        }
    }

    fn note_failure(&self, stream: &mut Option<KeepAliveChannel>, failure: &Failure) {
        *stream = None;
        self.note_break(failure);
        self.link.turn_away();
        self.health.send_replace(Health::unavailable(failure));
    }

    /// Notes a broken stream. If the member itself ended it (without a leader, or because the account's auth token
    /// expired), the connection is not broken.
    fn note_break(&self, failure: &Failure) {
        tracing::debug!(%failure, "the session's stream broke");
        if matches!(failure, Failure::Unavailable(_)) {
            self.note_broken_connection();
        }
    }

    /// Sends one keep-alive on the session's stream, and opens the stream if it broke. False if the session's lease is
    /// dead.
    async fn send_keep_alive(
        &self,
        stream: &mut Option<KeepAliveChannel>,
        epoch: SessionEpoch,
    ) -> Result<bool, Failure> {
        if let Some(mut open) = stream.take() {
            match keep_alive_on(&mut open).await {
                Ok(alive) => {
                    *stream = Some(open);
                    return Ok(alive);
                }
                Err(failure) => self.note_break(&failure),
            }
        }
        // The session is kept unless revisions have fallen, because with it the waiters would lose their positions.
        let connection = self.connection();
        let Some((opened, base)) = self.connect(epoch.session).await? else {
            return Ok(false);
        };
        *stream = Some(opened);
        self.note_base(base, Some(connection));
        self.note_serving();
        Ok(true)
    }
}
