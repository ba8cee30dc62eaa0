//! One monitored server: connected, checked by a handshake, and checked again every second.
//!
//! A connection carries steps only after its server has passed the handshake, and is closed as soon
//! as its server fails a later check; the next connection begins with a handshake again. Without a
//! connection, steps fail at once: nothing queues for an unavailable server.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, Value};
use tokio::sync::{Notify, watch};
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::confirmed::ConfirmedConnection;
use super::connection::{Connection, open};
use super::failure::{is_suspect, not_sent, unavailable};
use super::handshake::{ServerInfo, check_pubsub};
use super::library::{Scripts, load};
use super::marker::{Marker, Trust};
use super::marker_key::MOVED;
use super::pipelined::Pipelined;
use super::script::{Answer, Script, ScriptCall, ScriptRef, StepRequirements, is_unknown};
use super::sentinel::Finder;
use super::settings::{Replicas, Settings};
use crate::backend::clock::StoreClock;
use crate::backend::{BackendError, Health};
use crate::backoff::{Backoff, jitter};
use crate::supervisor::supervise_and;

/// How often a server is checked again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The minimum time between two checks.
const MIN_RECHECK_INTERVAL: Duration = Duration::from_millis(10);

/// A connection whose server has passed the handshake.
#[derive(Clone)]
pub struct LiveConnection {
    /// The server's address.
    pub info: ConnectionInfo,
    /// The properties that the server reported.
    pub server_info: ServerInfo,
    /// Whether it may grant leases.
    pub trust: Trust,
    /// Why no grant could be confirmed: the server has fewer replicas than `wait_replicas`.
    too_few_replicas: Option<String>,
    connection: Connection,
    pipelined: Pipelined,
    /// The connection for steps that replicas must confirm.
    confirmed: Option<ConfirmedConnection>,
    /// By what scripts are called.
    by: ScriptRef,
}

enum State {
    Unavailable(String),
    Live(Arc<LiveConnection>),
}

/// One server.
pub struct Node {
    state: watch::Receiver<State>,
    health: watch::Receiver<Health>,
    marker: Arc<Marker>,
    recheck: Arc<Notify>,
    /// Told when the server has forgotten the functions.
    forgotten: Arc<Notify>,
    _task: AbortOnDropHandle<()>,
}

impl Node {
    /// Starts to monitor the server that `finder` finds, and loads these scripts there.
    pub fn start(settings: Arc<Settings>, finder: Finder, marker: Marker, scripts: Scripts) -> Self {
        let (state_out, state) = watch::channel(State::Unavailable("not connected yet".into()));
        let (health_out, health) = watch::channel(Health::unavailable("not connected yet"));
        let (marker, recheck, forgotten) = (Arc::new(marker), Arc::new(Notify::new()), Arc::new(Notify::new()));
        let watcher = Watcher {
            settings,
            finder,
            scripts,
            marker: Arc::clone(&marker),
            recheck: Arc::clone(&recheck),
            forgotten: Arc::clone(&forgotten),
            state: state_out,
            health: health_out,
            clock: StoreClock::default(),
        };
        let report = |watcher: &Watcher, problem: &str| watcher.report_unavailable(&unavailable(problem));
        let task = supervise_and("redis: server", watcher, report, |watcher| watcher.run().boxed());
        Self {
            state,
            health,
            marker,
            recheck,
            forgotten,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// The health of the server.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// The current connection.
    ///
    /// # Errors
    /// NotSent, with the reason, while there is none.
    pub fn live(&self) -> Result<Arc<LiveConnection>, BackendError> {
        match &*self.state.borrow() {
            State::Unavailable(reason) => Err(not_sent(reason)),
            State::Live(live) => Ok(Arc::clone(live)),
        }
    }

    /// The id of the admission under which the server counts in the quorum; absent while it is not
    /// admitted.
    ///
    /// # Errors
    /// NotSent while there is no connection.
    pub fn admission(&self) -> Result<Option<Vec<u8>>, BackendError> {
        let live = self.live()?;
        Ok(self.marker.epoch().filter(|_| live.trust == Trust::Admitted))
    }

    /// Waits until `wanted` accepts the server's state: its connection, or `None` while there is
    /// none.
    pub async fn until(&self, wanted: impl Fn(Option<&LiveConnection>) -> bool) {
        let live = |state: &State| match state {
            State::Unavailable(_) => wanted(None),
            State::Live(live) => wanted(Some(live)),
        };
        if self.state.clone().wait_for(live).await.is_err() {
            std::future::pending().await
        }
    }

    /// Makes the monitor check the server at once.
    pub fn suspect(&self) {
        self.recheck.notify_one();
    }

    /// Calls a script.
    ///
    /// # Errors
    /// The client's own error: the caller decides whether it is a redirection.
    pub async fn call(
        &self,
        script: &'static Script,
        call: &ScriptCall<'_>,
        needs: StepRequirements,
    ) -> Result<redis::RedisResult<Answer>, BackendError> {
        let live = self.live()?;
        let call = async {
            match (&live.confirmed, needs) {
                (Some(confirmed), StepRequirements::Grant | StepRequirements::Replicas) => {
                    confirmed.call(script, live.by, call).await
                }
                _ => self.call_on(&live, script, call).await.map(Answer::from),
            }
        };
        // Without this, tokio's cooperative budget would suspend a task that sends many commands in
        // the middle of them, and they would lose their order.
        let answer = unconstrained(call).await;
        if answer.as_ref().is_err_and(is_suspect) {
            self.suspect();
        }
        Ok(answer)
    }

    async fn call_on(
        &self,
        live: &LiveConnection,
        script: &Script,
        call: &ScriptCall<'_>,
    ) -> redis::RedisResult<Value> {
        let mut connection = live.connection.clone();
        if live.by == ScriptRef::Function {
            let called = match call.asking {
                true => script.call_function(&mut connection, call).await,
                false => live.pipelined.call(script.command(call, live.by)).await,
            };
            match called {
                // Such a call had no effect. The script serves until the functions are loaded again.
                Err(error) if is_unknown(&error) => self.forgotten.notify_one(),
                other => return other,
            }
        }
        script.call(&mut connection, call).await
    }

    /// Calls any command.
    ///
    /// # Errors
    /// Like [`Self::call`].
    pub async fn command(&self, command: &redis::Cmd) -> Result<redis::RedisResult<Value>, BackendError> {
        let mut connection = self.live()?.connection.clone();
        let answer = connection.send_packed_command(command).await;
        Ok(answer.and_then(Value::extract_error))
    }

    /// Checks what a step asks of the server.
    ///
    /// # Errors
    /// Quarantined, or unavailable.
    pub fn check(&self, needs: StepRequirements) -> Result<(), BackendError> {
        match needs {
            StepRequirements::Grant => self.live()?.check(),
            StepRequirements::Replicas | StepRequirements::Nothing => Ok(()),
        }
    }

    /// Ends the quarantine of the current server on an operator's request.
    ///
    /// # Errors
    /// NotSent while there is no connection; Unavailable if the server does not reply.
    pub async fn admit(&self) -> Result<(), BackendError> {
        let live = self.live()?;
        self.marker.admit(&live.server_info.run_id);
        self.marker
            .check(&mut live.connection.clone(), &live.server_info)
            .await?;
        self.suspect();
        Ok(())
    }
}

impl LiveConnection {
    /// Whether `other` has the same server, trust and replica state.
    fn is_same(&self, other: &Self) -> bool {
        self.server_info.run_id == other.server_info.run_id
            && self.trust == other.trust
            && self.too_few_replicas == other.too_few_replicas
            && self.by == other.by
            && self.info.addr() == other.info.addr()
    }

    /// Whether the server may grant leases.
    fn check(&self) -> Result<(), BackendError> {
        if let Some(reason) = &self.too_few_replicas {
            return Err(not_sent(reason));
        }
        match self.trust {
            Trust::Admitted => Ok(()),
            Trust::Quarantined { until, cause } => Err(BackendError::Quarantined {
                left: until.saturating_duration_since(Instant::now()),
                reason: cause.to_string(),
            }),
        }
    }
}

struct Watcher {
    settings: Arc<Settings>,
    finder: Finder,
    scripts: Scripts,
    marker: Arc<Marker>,
    recheck: Arc<Notify>,
    forgotten: Arc<Notify>,
    state: watch::Sender<State>,
    health: watch::Sender<Health>,
    clock: StoreClock,
}

impl Watcher {
    async fn run(&self) {
        let mut backoff = Backoff::new(Duration::from_millis(20), self.finder.longest_pause());
        loop {
            let reason = match self.connect().await {
                Ok(link) => {
                    backoff.reset();
                    self.monitor(link).await
                }
                Err(error) => error,
            };
            self.report_unavailable(&reason);
            sleep(jitter(backoff.pause())).await;
        }
    }

    async fn connect(&self) -> Result<Link, BackendError> {
        let info = self.finder.find(&self.settings).await?;
        let closed = Arc::new(Notify::new());
        let mut connection = open(&self.settings, &info, &closed).await?;
        let (server_info, trust) = self.handshake(&mut connection).await?;
        let by = load(&mut connection, self.scripts).await.map_err(unavailable)?;
        check_pubsub(&mut connection, &self.settings.prefix).await?;
        let confirmed = match self.settings.replicas {
            Some(replicas) => Some(self.confirmed(replicas, &info, &server_info, &closed).await?),
            None => None,
        };
        let live = LiveConnection {
            too_few_replicas: self.too_few_replicas(&server_info),
            info,
            server_info,
            trust,
            pipelined: Pipelined::over(connection.clone()),
            connection,
            confirmed,
            by,
        };
        Ok(Link { live, closed })
    }

    /// Opens a second connection, for steps that replicas must confirm, to the same run of the
    /// server.
    async fn confirmed(
        &self,
        replicas: Replicas,
        info: &ConnectionInfo,
        server_info: &ServerInfo,
        closed: &Arc<Notify>,
    ) -> Result<ConfirmedConnection, BackendError> {
        let mut settings = Settings::clone(&self.settings);
        settings.response_timeout += replicas.timeout;
        let mut connection = open(&settings, info, closed).await?;
        let other = ServerInfo::ask(&mut connection).await?;
        other.check()?;
        if other.run_id != server_info.run_id {
            return Err(unavailable("the server was replaced while it was connected to"));
        }
        Ok(ConfirmedConnection::over(
            connection,
            replicas,
            settings.response_timeout,
            Arc::clone(&self.forgotten),
        ))
    }

    fn too_few_replicas(&self, server_info: &ServerInfo) -> Option<String> {
        let wanted = self.settings.replicas?.count;
        let has = server_info.replicas;
        (has < wanted).then(|| format!("the server has {has} replicas, and wait_replicas is {wanted}"))
    }

    async fn handshake(&self, connection: &mut MultiplexedConnection) -> Result<(ServerInfo, Trust), BackendError> {
        let server_info = ServerInfo::ask(connection).await?;
        server_info.check()?;
        if let Some(now) = server_info.time {
            self.clock.shows("redis", now);
        }
        let trust = self.marker.check(connection, &server_info).await;
        let trust = match trust {
            // The marker's slot has moved: retry with another key.
            Err(BackendError::Unavailable { reason }) if reason == MOVED => {
                self.marker.check(connection, &server_info).await?
            }
            other => other?,
        };
        Ok((server_info, trust))
    }

    /// Publishes a connection until it becomes unusable, and returns the reason.
    async fn monitor(&self, mut link: Link) -> BackendError {
        loop {
            self.report_live(&link.live);
            tokio::select! {
                () = link.closed.notified() => return unavailable("the connection was closed"),
                () = self.finder.moved(&self.settings, &link.live.info) => return unavailable("another server is master now"),
                () = self.recheck.notified() => {}
                () = self.forgotten.notified() => match load(&mut link.live.connection, self.scripts).await {
                    Ok(by) => link.live.by = by,
                    Err(error) => return unavailable(error),
                },
                () = sleep(recheck_after(&link.live.trust)) => {}
            }
            let checked = timeout(
                self.settings.response_timeout,
                self.handshake(&mut link.live.connection),
            )
            .await;
            match checked {
                Ok(Ok((server_info, trust))) => {
                    link.live.too_few_replicas = self.too_few_replicas(&server_info);
                    (link.live.server_info, link.live.trust) = (server_info, trust);
                }
                Ok(Err(error)) => return error,
                Err(_) => return unavailable("no answer in time"),
            }
        }
    }

    fn report_unavailable(&self, error: &BackendError) {
        let reason = match error {
            BackendError::Unavailable { reason } | BackendError::Broken { reason } => reason.clone(),
            other => other.to_string(),
        };
        self.state.send_replace(State::Unavailable(reason.clone()));
        self.report_health(Health::unavailable(reason));
    }

    fn report_live(&self, live: &LiveConnection) {
        if !matches!(&*self.state.borrow(), State::Live(old) if old.is_same(live)) {
            self.state.send_replace(State::Live(Arc::new(live.clone())));
        }
        let refusal = live.too_few_replicas.as_ref().or(live.server_info.no_memory.as_ref());
        self.report_health(match (live.trust.clone(), refusal.cloned()) {
            (Trust::Admitted, None) => Health::Serving,
            (Trust::Admitted, Some(reason)) => Health::Unavailable { reason },
            (Trust::Quarantined { until, cause }, _) => Health::Quarantined {
                until,
                reason: cause.to_string(),
            },
        });
    }

    fn report_health(&self, health: Health) {
        if Health::report(&self.health, health.clone()) {
            tracing::debug!(?health, "redis server");
        }
    }
}

/// When the server is checked again: also as soon as its quarantine ends.
fn recheck_after(trust: &Trust) -> Duration {
    match trust {
        Trust::Admitted => RECHECK_INTERVAL,
        Trust::Quarantined { until, .. } => until
            .saturating_duration_since(Instant::now())
            .clamp(MIN_RECHECK_INTERVAL, RECHECK_INTERVAL),
    }
}

struct Link {
    live: LiveConnection,
    closed: Arc<Notify>,
}
