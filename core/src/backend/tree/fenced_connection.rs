//! What this replica may do over its present connection: its session's fence, and the base of the tokens.
//!
//! **The fence.** Each session has a node whose version every granting or enqueueing commit checks. The first write over
//! each connection changes that node, so nothing that was sent over an earlier connection takes effect after it: what
//! such a step did can be read from then on.
//!
//! **Tokens** are `base` + the number of the granting transaction. A restore from an old copy takes the numbers back, so
//! each connection is fenced before it grants: this replica reads its clock, writes, reads the number of that write, and
//! raises `base` to `clock - number` if it is lower. An election of ZooKeeper adds 2^32 to the number, which is 72
//! minutes on the scale of microseconds: `base` may be lowered again as far as the last grant allows, which `mint` names
//! with the base it was given under. Where numbers do not leap ([`super::store::CommitBounds`]), `base` is never lowered, and
//! there is no `mint`.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::token_base::{Read, read_number, wanted_base};
use super::EngineSettings;
use super::data::paths::Paths;
use crate::backend::Health;
use crate::backend::clock::{TokenClock, is_usable, micros};
use crate::backend::local_clock::Clock;
use crate::backend::tree::store::{
    ANY, Connected, ConnectionState, Done, Failure, NodeKind, Op, Reason, Stat, Tree, Version,
};
use crate::backoff::Backoff;
use crate::name::FencingToken;

/// How long even what has waited long waits for the next connection.
const AT_LEAST: Duration = Duration::from_millis(500);
/// The pauses between the attempts to fence a connection.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// A connection that may grant: its session's fence was raised over it, and the token base was read after that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FencedConnection {
    /// The connection.
    pub generation: u64,
    /// The session, which its waiters live as long as.
    pub session: i64,
    fence: (String, Version),
    /// The base of the tokens that are granted.
    pub base: u64,
    base_version: Version,
    /// What the tokens had reached when the base was read.
    reached: u64,
    /// Why nothing may be granted or enqueued over it.
    pub refusal: Option<String>,
}

impl FencedConnection {
    /// The condition that nothing was sent over a later connection, and that the session lives.
    pub fn fence_check(&self) -> Op {
        Op::check(self.fence.0.clone(), self.fence.1)
    }
}

/// Fences the connections of a namespace.
#[derive(Debug)]
pub struct FencedConnections {
    kind: &'static str,
    tree: Arc<dyn Tree>,
    paths: Paths,
    current: watch::Sender<Option<Arc<FencedConnection>>>,
    health: watch::Sender<Health>,
    /// One connection is fenced at a time. The session whose fence was raised last.
    fencing: tokio::sync::Mutex<Option<i64>>,
    /// Notified when a connection that was fenced could not be fenced again.
    fence_again: Notify,
    /// The largest token that this replica has seen.
    largest: AtomicU64,
    /// The clocks of this server.
    server_clock: Arc<dyn Clock>,
    /// Whether tokens may follow the wall clock.
    clock: TokenClock,
    timeout: Duration,
    closed: CancellationToken,
}

impl FencedConnections {
    /// Those of a store of this kind, which answers in this time.
    pub fn new(tree: Arc<dyn Tree>, paths: Paths, settings: &EngineSettings) -> Self {
        let (kind, timeout) = (settings.kind, settings.timeout);
        Self {
            kind,
            server_clock: Arc::clone(&settings.clock),
            tree,
            paths,
            current: watch::Sender::new(None),
            health: watch::Sender::new(Health::unavailable(format!("{kind}: not connected yet"))),
            fencing: tokio::sync::Mutex::new(None),
            fence_again: Notify::new(),
            largest: AtomicU64::new(0),
            clock: TokenClock::default(),
            timeout,
            closed: CancellationToken::new(),
        }
    }

    /// What the wall clock says, in microseconds since 1970.
    fn now(&self) -> u64 {
        micros(self.server_clock.wall())
    }

    /// The health of the store, as far as this namespace knows.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Cancelled when the namespace is closed.
    pub fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// The present fenced connection, which changes with every connection and every change of the base.
    pub fn current(&self) -> watch::Receiver<Option<Arc<FencedConnection>>> {
        self.current.subscribe()
    }

    /// Waits for a fenced connection.
    ///
    /// # Errors
    /// [`Failure::NotSent`] when there is none in time.
    pub async fn ready(&self) -> Result<Arc<FencedConnection>, Failure> {
        self.ready_since(Instant::now()).await
    }

    /// The same for what has waited since then.
    ///
    /// # Errors
    /// See [`Self::ready`].
    pub async fn ready_since(&self, since: Instant) -> Result<Arc<FencedConnection>, Failure> {
        let within = self.timeout.saturating_sub(since.elapsed()).max(AT_LEAST);
        if let Some(connection) = &*self.current.borrow() {
            return Ok(Arc::clone(connection));
        }
        let mut current = self.current.subscribe();
        let fenced = async {
            let fenced = current.wait_for(Option::is_some).await;
            fenced.ok().and_then(|connection| (*connection).clone())
        };
        let fenced = tokio::select! {
            biased;
            fenced = timeout(within, fenced) => fenced.ok().flatten(),
            () = self.closed.cancelled() => None,
        };
        fenced.ok_or_else(|| {
            Failure::NotSent(match &*self.health.borrow() {
                Health::Unavailable { reason } => reason.clone(),
                Health::Serving | Health::Quarantined { .. } => "the connection is being fenced".into(),
            })
        })
    }

    /// Remembers a token that was granted.
    pub fn saw(&self, token: FencingToken) {
        self.largest.fetch_max(token.get(), Ordering::AcqRel);
    }

    /// Fences each new connection until the namespace is closed.
    pub async fn run(self: Arc<Self>) {
        let mut state = self.tree.state();
        let closed = self.closed.clone();
        let follow = async {
            loop {
                let now = state.borrow_and_update().clone();
                match now {
                    ConnectionState::Disconnected(why) => self.report_unavailable(self.says(&why)),
                    ConnectionState::Connected(Connected {
                        generation,
                        refusal: Some(refusal),
                        ..
                    }) => self.refuse(generation, &refusal),
                    ConnectionState::Connected(connected) => {
                        // A state that changes ends the fencing of the one before.
                        tokio::select! {
                            biased;
                            () = self.fence_with_retries(&connected) => {}
                            _ = state.changed() => { state.mark_changed(); }
                        }
                    }
                }
                tokio::select! {
                    biased;
                    changed = state.changed() => {
                        if changed.is_err() {
                            return;
                        }
                    }
                    () = self.fence_again.notified() => {}
                    () = self.clock_calls_for_a_fence() => {}
                }
            }
        };
        closed.run_until_cancelled(follow).await;
        self.report_unavailable("the namespace is closed".into());
    }

    /// A text about the store, with its name.
    fn says(&self, what: impl Display) -> String {
        format!("{}: {what}", self.kind)
    }

    fn report_unavailable(&self, reason: String) {
        self.current.send_replace(None);
        self.health.send_replace(Health::unavailable(reason));
    }

    /// Says that the task that fences connections has panicked. It fences the present one when it starts again.
    pub fn report_panic(&self, problem: &str) {
        self.report_unavailable(self.says(problem));
    }

    /// The store takes no writes but deletions over a connection, and so no fence either.
    fn refuse(&self, generation: u64, why: &str) {
        let why = self.says(why);
        self.current.send_if_modified(|current| {
            let fenced = current.as_mut().filter(|current| current.generation == generation);
            let refuses = fenced.is_some();
            if let Some(fenced) = fenced {
                Arc::make_mut(fenced).refusal = Some(why.clone());
            }
            refuses
        });
        self.health.send_replace(Health::unavailable(why));
    }

    async fn fence_with_retries(&self, connected: &Connected) {
        let mut backoff = BACKOFF;
        loop {
            match self.fence(connected.generation, connected.session).await {
                Ok(()) => return,
                Err(failure) => {
                    let server = &connected.server;
                    let why = format_args!("a connection to {server} could not be fenced: {failure}");
                    self.report_unavailable(self.says(why));
                }
            }
            sleep(backoff.pause()).await;
        }
    }

    /// Fences a connection anew, because a step over it was refused by a check. Another replica may have raised the base.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn renew(&self, failed: &FencedConnection) -> Result<(), Failure> {
        let is_current = |now: &Option<Arc<FencedConnection>>| now.as_ref().is_some_and(|now| **now == *failed);
        let fencing = self.fencing.lock().await;
        if !is_current(&self.current.borrow()) {
            return Ok(());
        }
        // The answer that refused the step is newer than the change, so this read sees that.
        let read = self.tree.get(failed.generation, &self.paths.base()).await?;
        let read = read.map(|(base, stat)| Ok::<_, Failure>((read_number(&base)?, stat)));
        let read = read.transpose()?;
        drop(fencing);
        // Otherwise it was the fence, the nodes of the namespace were deleted by hand, or the base was lowered: the
        // operator who did that does not know this replica's largest token.
        let is_raised = |base: u64, stat: &Stat| {
            let is_changed = (base, stat.version) != (failed.base, failed.base_version);
            base >= failed.base && is_usable(base, stat.modified.unsigned_abs()) && is_changed
        };
        let Some((base, stat)) = read.filter(|(base, stat)| is_raised(*base, stat)) else {
            let fenced = self.fence(failed.generation, failed.session).await;
            if fenced.is_err() {
                self.fence_again.notify_one();
            }
            return fenced;
        };
        let connection = FencedConnection {
            base,
            base_version: stat.version,
            ..failed.clone()
        };
        self.current.send_if_modified(|current| {
            let replaces = is_current(current);
            if replaces {
                *current = Some(Arc::new(connection));
            }
            replaces
        });
        Ok(())
    }

    async fn fence(&self, generation: u64, session: i64) -> Result<(), Failure> {
        let mut fenced = self.fencing.lock().await;
        self.current.send_replace(None);
        self.make_directories(generation).await?;
        let clock = self.now();
        let fence = self.raise_fence(generation, session, *fenced).await?;
        *fenced = Some(session);
        let (read, settled) = loop {
            let read = self.read(generation, &fence).await?;
            let wanted = match self.clock.floor(clock, read.reached(self.largest())) {
                Ok(clock) => wanted_base(&read, clock, self.largest()),
                Err(wrong) => break (read, Err(wrong)),
            };
            match self.settle_base(generation, &read, wanted).await {
                // Another replica has changed the base, or granted, at the same moment.
                Err(Failure::Refused { reason, .. }) if is_check_failure(&reason) => {}
                settled => break (read, Ok(settled?)),
            }
        };
        let (base, base_version, reached, refusal) = match settled {
            Ok((base, version)) => (base, version, base + read.number, None),
            Err(wrong) => {
                let reached = read.reached(self.largest());
                (read.base, read.base_version, reached, Some(wrong.to_string()))
            }
        };
        let health = match &refusal {
            Some(refusal) => Health::unavailable(self.says(refusal)),
            None => Health::Serving,
        };
        let connection = FencedConnection {
            generation,
            session,
            fence: (self.paths.fence(session), fence.version),
            base,
            base_version,
            reached,
            refusal,
        };
        let is_still =
            |state: &ConnectionState| matches!(state, ConnectionState::Connected(now) if now.generation == generation);
        if is_still(&self.tree.state().borrow()) {
            self.current.send_replace(Some(Arc::new(connection)));
            self.health.send_replace(health);
        }
        Ok(())
    }

    /// The first write over a connection.
    async fn raise_fence(&self, generation: u64, session: i64, fenced: Option<i64>) -> Result<Stat, Failure> {
        let path = self.paths.fence(session);
        let raise = Op::set(path.clone(), Vec::new(), ANY);
        let create = Op::Create {
            path,
            data: Vec::new(),
            kind: NodeKind::Ephemeral,
        };
        // The old session may live on: nothing that was sent under it takes effect without its fence.
        if let Some(old) = fenced.filter(|old| *old != session) {
            let gone = self.tree.apply(generation, &[Op::delete(self.paths.fence(old), ANY)]);
            match gone.await {
                Err(failure) if !failure.is_no_node() => return Err(failure),
                _ => {}
            }
        }
        let done = match self.tree.apply(generation, std::slice::from_ref(&raise)).await {
            Err(failure) if failure.is_no_node() => self.tree.apply(generation, &[create, raise]).await?,
            done => done?,
        };
        match done.into_iter().next_back() {
            Some(Done::Set(stat)) => Ok(stat),
            _ => Err(Failure::malformed()),
        }
    }

    /// The largest token that this replica has seen.
    fn largest(&self) -> u64 {
        self.largest.load(Ordering::Acquire)
    }

    async fn read(&self, generation: u64, fence: &Stat) -> Result<Read, Failure> {
        let absent = || Failure::NotSent("the node of the token base is gone".into());
        let base = self.tree.get(generation, &self.paths.base());
        let mint = async {
            match self.tree.bounds().numbers_leap {
                true => {
                    let mint = self.tree.get(generation, &self.paths.mint()).await?;
                    mint.ok_or_else(absent).map(Some)
                }
                false => Ok(None),
            }
        };
        let (base, mint) = tokio::try_join!(base, mint)?;
        let (base, base_stat) = base.ok_or_else(absent)?;
        let last = |(mint, stat): (Vec<u8>, Stat)| {
            let token = read_number(&mint)?.saturating_add(stat.modified.unsigned_abs());
            Ok::<_, Failure>((token, stat.version))
        };
        Ok(Read {
            number: fence.modified.unsigned_abs(),
            base: read_number(&base)?,
            base_version: base_stat.version,
            last: mint.map(last).transpose()?,
        })
    }

    /// Writes the base that is wanted, unless it is there. Returns it with its version.
    async fn settle_base(
        &self,
        generation: u64,
        read: &Read,
        (base, lowered_at): (u64, Option<Version>),
    ) -> Result<(u64, Version), Failure> {
        if base == read.base {
            return Ok((base, read.base_version));
        }
        let mut ops = vec![Op::set(
            self.paths.base(),
            base.to_be_bytes().to_vec(),
            read.base_version,
        )];
        if let Some(mint_version) = lowered_at {
            ops.push(Op::check(self.paths.mint(), mint_version));
        }
        match self.tree.apply(generation, &ops).await?.first() {
            Some(Done::Set(stat)) => Ok((base, stat.version)),
            _ => Err(Failure::malformed()),
        }
    }

    /// The operations of a granting commit beside its grants.
    pub fn granting(&self, connection: &FencedConnection) -> impl Iterator<Item = Op> {
        let mint = || Op::set(self.paths.mint(), connection.base.to_be_bytes().to_vec(), ANY);
        let mint = self.tree.bounds().numbers_leap.then(mint);
        let base = Op::check(self.paths.base(), connection.base_version);
        std::iter::once(base).chain(mint)
    }
}

/// Whether this says that a check of a version has failed.
pub fn is_check_failure(reason: &Reason) -> bool {
    matches!(reason, Reason::BadVersion | Reason::NoNode)
}

mod nodes;
mod token_base;
mod wrong_clock;
