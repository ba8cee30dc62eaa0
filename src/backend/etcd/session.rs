//! What a replica is to the store: an etcd lease that its waiting claims and cancel marks live on,
//! and the base that tokens are counted from.
//!
//! Every enter, adoption and take-up compares that the session it was sent under still lives. So
//! when a session ends, everything late of that replica fails, and marks need no clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::keep_alive::{Alive, Beat, beat_on, breaks};
use super::cluster_checks::Condition;
use super::clock::{micros, wall};
use super::keys::Keys;
use super::leases::Leases;
use super::cluster_client::{Failure, ClusterClient, failure};
use super::key_pool::KeyPool;
use crate::backend::Health;

mod keep_alive;

/// How soon a store that is away is asked again.
const AGAIN: Duration = Duration::from_millis(200);
/// How often it is asked how it is.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// A session ends when no call was answered for so many times its TTL: what is first in a queue is to go on.
const SILENT_TTLS: u32 = 2;

const NO_SPACE: &str = "etcd: its space is used up (NOSPACE): nothing is granted until there is some again";

/// A session and the base, as a step is sent under them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionEpoch {
    /// The session's lease.
    pub session: i64,
    /// What is added to a grant's revision.
    pub base: u64,
    /// The connection that the base was proven over.
    pub connection: u64,
}

/// Where this replica stands.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    ticket: Option<SessionEpoch>,
    /// How many connections have broken: the store may have been restored behind the next one.
    connection: u64,
}

/// The sessions of one replica in one namespace, one after another.
#[derive(Debug)]
pub struct Session {
    keys: Keys,
    link: Arc<ClusterClient>,
    leases: Arc<Leases>,
    names: Arc<KeyPool>,
    ttl: Duration,
    wait_policy: Duration,
    standing: watch::Sender<Standing>,
    health: watch::Sender<Health>,
    /// The store takes no writes.
    full: AtomicBool,
    closed: CancellationToken,
}

impl Session {
    pub fn new(
        keys: Keys,
        link: Arc<ClusterClient>,
        (leases, names): (Arc<Leases>, Arc<KeyPool>),
        ttl: Duration,
        wait_policy: Duration,
    ) -> Self {
        let reason = "etcd: not connected yet".into();
        Self {
            keys,
            link,
            leases,
            names,
            ttl,
            wait_policy,
            standing: watch::Sender::default(),
            health: watch::Sender::new(Health::Unavailable { reason }),
            full: AtomicBool::new(false),
            closed: CancellationToken::new(),
        }
    }

    /// What was kept to be used again may be on keys of others again.
    fn abandon(&self) {
        self.leases.abandon();
        self.names.abandon();
    }

    /// The session that lives now; waits for one for as long as a request may take.
    pub async fn ticket(&self) -> Result<SessionEpoch, Failure> {
        if self.closed.is_cancelled() {
            return Err(Failure::Unavailable("the namespace is closed".into()));
        }
        let mut standing = self.standing.subscribe();
        let proven = standing.wait_for(|standing| self.proven(standing).is_some());
        let proven = timeout(self.wait_policy, proven).await;
        match proven
            .ok()
            .and_then(Result::ok)
            .and_then(|standing| self.proven(&standing))
        {
            Some(ticket) => Ok(ticket),
            None => Err(Failure::Unavailable(self.trouble())),
        }
    }

    /// The session that a call may enter under.
    ///
    /// # Errors
    /// [`Failure::NotSent`]: nothing was sent for the call.
    pub async fn ready(&self) -> Result<SessionEpoch, Failure> {
        self.has_space().map_err(Failure::unsent)?;
        self.ticket().await.map_err(Failure::unsent)
    }

    /// The ticket, if its base was proven since the last connection broke.
    fn proven(&self, standing: &Standing) -> Option<SessionEpoch> {
        let connection = standing.connection + self.link.proving.broken();
        standing.ticket.filter(|ticket| ticket.connection == connection)
    }

    /// Names the connection: it is another one when one has broken.
    fn connection(&self) -> u64 {
        self.standing.borrow().connection + self.link.proving.broken()
    }

    fn trouble(&self) -> String {
        match &*self.health.borrow() {
            Health::Unavailable { reason } => reason.clone(),
            _ => "etcd: no session".into(),
        }
    }

    /// The store says that this session is over.
    pub fn is_over(&self, ticket: SessionEpoch) {
        self.standing.send_if_modified(|standing| {
            let over = standing.ticket.take_if(|current| current.session == ticket.session);
            over.is_some()
        });
    }

    /// Whether the connection has not broken since.
    pub fn is_connected(&self, ticket: SessionEpoch) -> bool {
        self.connection() == ticket.connection
    }

    /// A connection broke: nothing is granted before the base was proven over the next one.
    fn broke(&self) {
        self.standing.send_modify(|standing| standing.connection += 1);
    }

    /// Another replica has raised the base.
    pub fn rebase(&self, base: u64) {
        self.note_base(base, None);
    }

    fn note_base(&self, base: u64, proven_over: Option<u64>) {
        self.standing.send_if_modified(|standing| {
            let Some(ticket) = &mut standing.ticket else {
                return false;
            };
            let connection = proven_over.unwrap_or(ticket.connection);
            let noted = SessionEpoch {
                base,
                connection,
                ..*ticket
            };
            std::mem::replace(ticket, noted) != noted
        });
    }

    /// The store says that its space is used up.
    pub fn is_full(&self) {
        self.full.store(true, Ordering::Release);
        self.well();
    }

    /// That the store takes writes, as far as is known.
    ///
    /// # Errors
    /// [`Failure::Full`] while it does not.
    pub fn has_space(&self) -> Result<(), Failure> {
        match self.full.load(Ordering::Acquire) {
            true => Err(Failure::Full(NO_SPACE.into())),
            false => Ok(()),
        }
    }

    /// The session lives: so it serves, if there is space.
    fn well(&self) {
        let health = match self.full.load(Ordering::Acquire) {
            true => Health::Unavailable {
                reason: NO_SPACE.into(),
            },
            false => Health::Serving,
        };
        self.health.send_if_modified(|known| {
            let changed = *known != health;
            *known = health;
            changed
        });
    }

    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    pub fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// Ends the session at once, with what is on it.
    pub async fn close(&self) {
        self.closed.cancel();
        let ticket = self.standing.borrow().ticket;
        if let Some(ticket) = ticket {
            self.is_over(ticket);
            // Otherwise it ends by itself.
            let _ = self.leases.revoke(ticket.session).await;
        }
    }

    /// Keeps one session after another alive until it is closed. `lost` is called after each end,
    /// for its waiting claims are gone.
    pub async fn run(self: Arc<Self>, lost: impl Fn()) {
        let run = async {
            loop {
                match self.open().await {
                    Ok(ticket) => {
                        self.standing.send_modify(|standing| standing.ticket = Some(ticket));
                        self.well();
                        let alive = Alive::now();
                        tokio::select! {
                            () = self.keep(ticket, &alive) => {}
                            () = self.keep_apart(ticket, &alive) => {}
                            () = self.check_again() => {}
                        }
                        self.is_over(ticket);
                        // What is on it goes at once, if it still lives; otherwise by itself.
                        let leases = Arc::clone(&self.leases);
                        tokio::spawn(async move {
                            let revoked = leases.revoke(ticket.session).await;
                            tracing::info!(revoked = revoked.is_ok(), "the session in etcd ended");
                        });
                        lost();
                    }
                    Err(failure) => {
                        self.health.send_replace(Health::Unavailable {
                            reason: failure.to_string(),
                        });
                        sleep(AGAIN).await;
                    }
                }
            }
        };
        self.closed.run_until_cancelled(run).await;
    }

    /// Asks now and then how the cluster is.
    async fn check_again(&self) {
        loop {
            sleep(CHECK_EVERY).await;
            match Condition::of(&self.link, &self.keys.base()).await {
                Ok(condition) => self.note_space(&condition),
                Err(failure) => tracing::debug!(%failure, "etcd does not say how it is"),
            }
        }
    }

    fn note_space(&self, condition: &Condition) {
        if self.full.swap(condition.full, Ordering::AcqRel) != condition.full {
            let db_bytes = condition.db_bytes;
            match condition.full {
                true => tracing::error!(db_bytes, "etcd has no space left: nothing is granted"),
                false => tracing::info!(db_bytes, "etcd has space again"),
            }
            self.well();
        }
    }

    async fn open(&self) -> Result<SessionEpoch, Failure> {
        let connection = self.connection();
        let condition = Condition::of(&self.link, &self.keys.base()).await?;
        condition.tell();
        self.full.store(condition.full, Ordering::Release);
        self.has_space()?;
        // A read that needs a quorum, and a write that needs the right to write.
        let base = self.establish_token_base().await?;
        let lease = self.leases.fresh(self.ttl).await?;
        let key = self.keys.session(lease.id);
        let put = TxnOp::put(key, "1", Some(PutOptions::new().with_lease(lease.id)));
        self.link.txn(Txn::new().and_then([put])).await?;
        Ok(SessionEpoch {
            session: lease.id,
            base,
            connection,
        })
    }

    /// Makes sure, before the first grant over a connection, that tokens lie above all that were
    /// given before, even if the store was restored from an old snapshot meanwhile.
    async fn establish_token_base(&self) -> Result<u64, Failure> {
        loop {
            let seen = self.link.revision();
            let read = self.link.get_whatever(self.keys.base(), GetOptions::new()).await?;
            let revision = read.header().map_or(0, |header| header.revision());
            if revision < seen {
                tracing::warn!(
                    revision,
                    seen,
                    "etcd went back in time: it was restored from a snapshot"
                );
                self.link.forget();
                // A snapshot may have brought back what is on them; who keeps the session ends it.
                self.abandon();
                self.standing.send_modify(|standing| standing.ticket = None);
            }
            let kept = read.kvs().first();
            let base = kept.and_then(|kv| kv.value_str().ok()?.parse().ok()).unwrap_or(0);
            let floor = micros(wall()).saturating_sub(revision.unsigned_abs());
            if floor <= base {
                return Ok(base);
            }
            let unchanged = Compare::mod_revision(
                self.keys.base(),
                CompareOp::Equal,
                kept.map_or(0, |kv| kv.mod_revision()),
            );
            let raise = TxnOp::put(self.keys.base(), floor.to_string(), None);
            if self
                .link
                .txn(Txn::new().when([unchanged]).and_then([raise]))
                .await?
                .succeeded()
            {
                return Ok(floor);
            }
        }
    }

    /// Keeps the session alive over the connection of the calls, and notes when that breaks. Returns when the session
    /// is over.
    async fn keep(&self, ticket: SessionEpoch, alive: &Alive) {
        let every = self.keep_alive_every();
        let mut answered = Instant::now();
        let mut stream = None;
        let mut over = self.standing.subscribe();
        let (mut restores, mut ways) = (self.link.restores(), self.link.proving.ways());
        while alive.since() < self.ttl && answered.elapsed() < self.ttl * SILENT_TTLS {
            let sent = Instant::now();
            match timeout(every, self.beat(&mut stream, ticket)).await {
                Ok(Ok(true)) => {
                    answered = sent;
                    alive.note(sent);
                }
                Ok(Ok(false)) => return,
                Ok(Err(failure)) => self.trouble_with(&mut stream, &failure),
                Err(_) => {
                    let late = Failure::Unavailable("etcd: a sign of life was not answered".into());
                    self.trouble_with(&mut stream, &late);
                }
            }
            let pause = if stream.is_some() { every } else { AGAIN };
            let ended = over.wait_for(|now| now.ticket.is_none_or(|current| current.session != ticket.session));
            tokio::select! {
                _ = ended => return,
                _ = restores.changed() => {
                    tracing::warn!("etcd went back in time: it was restored from a snapshot");
                    return;
                }
                // Calls go another way: it is listened to instead.
                _ = ways.changed() => stream = None,
                failure = breaks(&mut stream) => self.note_break(&failure),
                () = sleep(pause) => {}
            }
        }
    }

    fn trouble_with(&self, stream: &mut Option<Beat>, failure: &Failure) {
        *stream = None;
        self.note_break(failure);
        self.link.turn_away();
        self.health.send_replace(Health::Unavailable {
            reason: failure.to_string(),
        });
    }

    /// A stream broke. Where the member itself has ended it (for want of a leader, or with the token of
    /// the account) the connection is whole.
    fn note_break(&self, failure: &Failure) {
        tracing::debug!(%failure, "the session's stream broke");
        if matches!(failure, Failure::Unavailable(_)) {
            self.broke();
        }
    }

    /// One sign of life on the session's own stream; it is opened again where it broke, with its member
    /// or with the token of the account.
    async fn beat(&self, stream: &mut Option<Beat>, ticket: SessionEpoch) -> Result<bool, Failure> {
        if let Some(mut open) = stream.take() {
            match beat_on(&mut open).await {
                Ok(alive) => {
                    *stream = Some(open);
                    return Ok(alive);
                }
                Err(failure) => self.note_break(&failure),
            }
        }
        // A new connection: what it leads to may have been restored from a snapshot. The leases of
        // the pool go, for their worth is a round trip; the session stays while revisions have not
        // fallen, for with it the waiters would lose their places.
        self.abandon();
        let connection = self.connection();
        self.note_base(self.establish_token_base().await?, Some(connection));
        let mut client = self.link.streaming().await?;
        match client.lease_keep_alive(ticket.session).await {
            Ok(opened) => *stream = Some(opened),
            Err(etcd_client::Error::LeaseKeepAliveError(_)) => return Ok(false),
            Err(error) => return Err(failure(&error)),
        }
        self.well();
        Ok(true)
    }
}
