//! One server, watched over: connected to, shaken hands with, asked again each second.
//!
//! A connection carries verbs only after its server has passed the handshake, and is given up as
//! soon as it does not any more; the next one begins with a handshake of its own. While there is
//! none, verbs fail at once: nothing queues up for a server that is away.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, PushInfo, PushKind, Value};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, sleep, timeout};

use super::confirmed::ConfirmedConnection;
use super::failure::{away, is_suspect, of_script, unsent};
use super::handshake::{Facts, prove_messages};
use super::marker::{MOVED, Marker, Trust};
use super::credentials::CredentialedServer;
use super::script::{Answer, Ask, Script, Scripts, load};
use super::sentinel::Finder;
use super::settings::{Replicas, Settings};
use super::topology::StepRequirements;
use crate::backend::{BackendError, Health};

/// How often a server is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// How soon at the earliest.
const SOON: Duration = Duration::from_millis(10);

/// How many commands may wait to be written to a connection. Past it senders wait for one another, and whichever of
/// them runs first goes first: commands of one moment would lose their order.
pub const UNWRITTEN: usize = 65_536;

/// A connection that has passed the handshake.
#[derive(Clone)]
pub struct LiveConnection {
    /// Where it leads.
    pub info: ConnectionInfo,
    /// What the server said of itself.
    pub facts: Facts,
    /// Whether it is trusted with grants.
    pub trust: Trust,
    /// Why no grant could be confirmed: it has fewer replicas than are asked for.
    bare: Option<String>,
    connection: MultiplexedConnection,
    /// Where steps go that replicas must have taken.
    confirming: Option<ConfirmedConnection>,
}

enum State {
    Unavailable(String),
    LiveConnection(Arc<LiveConnection>),
}

/// One server.
pub struct Node {
    state: watch::Receiver<State>,
    health: watch::Receiver<Health>,
    marker: Arc<Marker>,
    look: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Node {
    /// Begins to watch over the server that `finder` finds, which is to know these scripts.
    pub fn start(settings: Arc<Settings>, finder: Finder, marker: Marker, scripts: Scripts) -> Self {
        let (state_out, state) = watch::channel(State::Unavailable("not connected yet".into()));
        let (health_out, health) = watch::channel(Health::Unavailable {
            reason: "not connected yet".into(),
        });
        let (marker, look) = (Arc::new(marker), Arc::new(Notify::new()));
        let watcher = Watcher {
            settings,
            finder,
            scripts,
            marker: Arc::clone(&marker),
            look: Arc::clone(&look),
            state: state_out,
            health: health_out,
        };
        Self {
            state,
            health,
            marker,
            look,
            task: tokio::spawn(watcher.run()),
        }
    }

    /// How the server is.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// The connection to use.
    ///
    /// # Errors
    /// Unsent, with the reason, while there is none.
    pub fn live(&self) -> Result<Arc<LiveConnection>, BackendError> {
        match &*self.state.borrow() {
            State::Unavailable(reason) => Err(unsent(reason)),
            State::LiveConnection(live) => Ok(Arc::clone(live)),
        }
    }

    /// What names the admission under which the server votes; nothing while it may not.
    ///
    /// # Errors
    /// Unsent while there is no connection.
    pub fn admission(&self) -> Result<Option<Vec<u8>>, BackendError> {
        let live = self.live()?;
        Ok(self.marker.epoch().filter(|_| live.trust == Trust::Admitted))
    }

    /// Waits until the server is as `wanted`: with its connection, or nothing while there is none.
    pub async fn until(&self, wanted: impl Fn(Option<&LiveConnection>) -> bool) {
        let live = |state: &State| match state {
            State::Unavailable(_) => wanted(None),
            State::LiveConnection(live) => wanted(Some(live)),
        };
        if self.state.clone().wait_for(live).await.is_err() {
            std::future::pending().await
        }
    }

    /// Lets the watcher look at once.
    pub fn suspect(&self) {
        self.look.notify_one();
    }

    /// Calls a script.
    ///
    /// # Errors
    /// The client's own: who calls knows whether it is a redirection.
    pub async fn call(
        &self,
        script: &'static Script,
        ask: &Ask<'_>,
        needs: StepRequirements,
    ) -> Result<redis::RedisResult<Answer>, BackendError> {
        let live = self.live()?;
        let call = async {
            match (&live.confirming, needs) {
                (Some(confirming), StepRequirements::Grant | StepRequirements::Replicas) => confirming.call(script, ask).await,
                _ => script.call(&mut live.connection.clone(), ask).await.map(Answer::from),
            }
        };
        // A task that sends many would else be told to come again with some of them, and lose their order.
        let answer = unconstrained(call).await;
        if answer.as_ref().is_err_and(is_suspect) {
            self.suspect();
        }
        Ok(answer)
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

    /// Whether the server may grant leases: whether it is trusted, and followed by enough replicas.
    ///
    /// # Errors
    /// Quarantined, or away.
    pub fn may_grant(&self) -> Result<(), BackendError> {
        self.live()?.check()
    }

    /// Ends the quarantine of the present server by hand.
    ///
    /// # Errors
    /// Away while there is no server.
    pub async fn admit(&self) -> Result<(), BackendError> {
        let live = self.live()?;
        self.marker.admit(&live.facts.run_id);
        self.marker.see(&mut live.connection.clone(), &live.facts).await?;
        self.suspect();
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl LiveConnection {
    /// Whether there is nothing new in `other`.
    fn is_as(&self, other: &Self) -> bool {
        self.facts.run_id == other.facts.run_id
            && self.trust == other.trust
            && self.bare == other.bare
            && self.info.addr() == other.info.addr()
    }

    /// Whether grants may be made here.
    fn check(&self) -> Result<(), BackendError> {
        if let Some(reason) = &self.bare {
            return Err(unsent(reason));
        }
        match self.trust {
            Trust::Admitted => Ok(()),
            Trust::Quarantined { until } => Err(BackendError::Quarantined {
                left: until.saturating_duration_since(Instant::now()),
                reason: quarantine_reason(&self.facts),
            }),
        }
    }
}

fn quarantine_reason(facts: &Facts) -> String {
    let run = &facts.run_id;
    format!("run {run} of the server may have lost what was granted before it")
}

struct Watcher {
    settings: Arc<Settings>,
    finder: Finder,
    scripts: Scripts,
    marker: Arc<Marker>,
    look: Arc<Notify>,
    state: watch::Sender<State>,
    health: watch::Sender<Health>,
}

impl Watcher {
    async fn run(self) {
        let mut pause = Duration::from_millis(20);
        loop {
            let reason = match self.connect().await {
                Ok(link) => {
                    pause = Duration::from_millis(20);
                    self.keep(link).await
                }
                Err(error) => error,
            };
            self.tell_away(&reason);
            sleep(jitter(pause)).await;
            pause = (pause * 2).min(self.finder.back_off());
        }
    }

    async fn connect(&self) -> Result<Link, BackendError> {
        let info = self.finder.find(&self.settings).await?;
        let closed = Arc::new(Notify::new());
        let mut connection = open(&self.settings, &info, &closed).await?;
        let (facts, trust) = self.shake(&mut connection).await?;
        load(&mut connection, self.scripts).await.map_err(away)?;
        prove_messages(&mut connection, &self.settings.prefix).await?;
        let confirming = match self.settings.replicas {
            Some(replicas) => Some(self.confirming(replicas, &info, &facts, &closed).await?),
            None => None,
        };
        let live = LiveConnection {
            bare: self.bare(&facts),
            info,
            facts,
            trust,
            connection,
            confirming,
        };
        Ok(Link { live, closed })
    }

    /// A second connection, for what replicas must confirm, to the very same run of the server.
    async fn confirming(
        &self,
        replicas: Replicas,
        info: &ConnectionInfo,
        facts: &Facts,
        closed: &Arc<Notify>,
    ) -> Result<ConfirmedConnection, BackendError> {
        let mut settings = Settings::clone(&self.settings);
        settings.response_timeout += replicas.timeout;
        let mut connection = open(&settings, info, closed).await?;
        let other = Facts::ask(&mut connection).await?;
        other.check()?;
        if other.run_id != facts.run_id {
            return Err(away("the server was replaced while it was connected to"));
        }
        Ok(ConfirmedConnection::over(connection, replicas, settings.response_timeout))
    }

    fn bare(&self, facts: &Facts) -> Option<String> {
        let wanted = self.settings.replicas?.count;
        let has = facts.replicas;
        (has < wanted).then(|| format!("the server has {has} replicas, and wait_replicas is {wanted}"))
    }

    async fn shake(&self, connection: &mut MultiplexedConnection) -> Result<(Facts, Trust), BackendError> {
        let facts = Facts::ask(connection).await?;
        facts.check()?;
        let seen = self.marker.see(connection, &facts).await;
        let trust = match seen {
            // Once more, under another key.
            Err(BackendError::Unavailable { reason }) if reason == MOVED => self.marker.see(connection, &facts).await?,
            other => other?,
        };
        Ok((facts, trust))
    }

    /// Offers a connection until it is no good any more, and says why.
    async fn keep(&self, mut link: Link) -> BackendError {
        loop {
            self.tell_live(&link.live);
            tokio::select! {
                () = link.closed.notified() => return away("the connection was closed"),
                () = self.finder.moved(&self.settings, &link.live.info) => return away("another server is master now"),
                () = self.look.notified() => {}
                () = sleep(again(&link.live.trust)) => {}
            }
            let shaken = timeout(self.settings.response_timeout, self.shake(&mut link.live.connection)).await;
            match shaken {
                Ok(Ok((facts, trust))) => {
                    link.live.bare = self.bare(&facts);
                    (link.live.facts, link.live.trust) = (facts, trust);
                }
                Ok(Err(error)) => return error,
                Err(_) => return away("no answer in time"),
            }
        }
    }

    fn tell_away(&self, error: &BackendError) {
        let reason = match error {
            BackendError::Unavailable { reason } | BackendError::Broken { reason } => reason.clone(),
            other => other.to_string(),
        };
        self.state.send_replace(State::Unavailable(reason.clone()));
        self.tell_health(Health::Unavailable { reason });
    }

    fn tell_live(&self, live: &LiveConnection) {
        if !matches!(&*self.state.borrow(), State::LiveConnection(old) if old.is_as(live)) {
            self.state.send_replace(State::LiveConnection(Arc::new(live.clone())));
        }
        self.tell_health(match (live.trust.clone(), live.bare.clone()) {
            (Trust::Admitted, None) => Health::Serving,
            (Trust::Admitted, Some(reason)) => Health::Unavailable { reason },
            (Trust::Quarantined { until }, _) => Health::Quarantined {
                until,
                reason: quarantine_reason(&live.facts),
            },
        });
    }

    fn tell_health(&self, health: Health) {
        let changed = self.health.send_if_modified(|old| {
            let changed = *old != health;
            *old = health.clone();
            changed
        });
        if changed {
            tracing::info!(?health, "redis server");
        }
    }
}

/// When the server is asked again: also as soon as its quarantine is over.
fn again(trust: &Trust) -> Duration {
    match trust {
        Trust::Admitted => AGAIN,
        Trust::Quarantined { until } => until.saturating_duration_since(Instant::now()).clamp(SOON, AGAIN),
    }
}

struct Link {
    live: LiveConnection,
    closed: Arc<Notify>,
}

/// Opens a connection that notifies `closed` of its end.
async fn open(
    settings: &Settings,
    info: &ConnectionInfo,
    closed: &Arc<Notify>,
) -> Result<MultiplexedConnection, BackendError> {
    let told = Arc::clone(closed);
    let connection = connect(settings, settings.proof.at_server(info), move |push| {
        if push.kind == PushKind::Disconnection {
            told.notify_one();
        }
    });
    connection.await
}

/// Opens a connection and hands on what the server pushes.
///
/// # Errors
/// Away when it cannot be opened in time.
pub async fn connect(
    settings: &Settings,
    to: CredentialedServer,
    pushed: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<MultiplexedConnection, BackendError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(settings.connect_timeout))
        .set_response_timeout(Some(settings.response_timeout))
        .set_pipeline_buffer_size(UNWRITTEN)
        .set_push_sender(move |push| {
            pushed(push);
            Ok::<(), ()>(())
        });
    let client = Client::open(to.into_info()).map_err(away)?;
    let made = timeout(
        settings.connect_timeout + settings.response_timeout,
        client.get_multiplexed_async_connection_with_config(&config),
    );
    made.await
        .map_err(|_| away("no connection in time"))?
        .map_err(|error| of_script(&error))
}

/// A pause of half to all of `pause`, so that many do not come back at once.
pub fn jitter(pause: Duration) -> Duration {
    let mut byte = [0];
    // Without randomness everybody pauses alike, which is only less gentle.
    let _ = getrandom::fill(&mut byte);
    pause / 2 + pause * u32::from(byte[0]) / 512
}
