//! Keeps one session over all servers: connects again after each loss, and begins a new session when the old one has
//! expired.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use super::connection::{Connection, Ended, Identity};
use super::{Request, opcode};
use crate::backend::tree::store::{Connected, ConnectionState, Event, Failure};
use crate::backend::zookeeper::settings::{Credentials, Settings};
use crate::backoff::Backoff;

/// The pauses between the attempts to connect.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// See the module.
pub struct Session {
    settings: Settings,
    credentials: Arc<ArcSwap<Credentials>>,
    reconnect: Arc<Notify>,
    state: watch::Sender<ConnectionState>,
    events: mpsc::UnboundedSender<Event>,
    identity: Identity,
    generation: u64,
    /// The index of the server that is tried next.
    next: usize,
    /// When a server last answered for the session.
    heard: Instant,
    /// After so much silence the servers have ended the session: they may have given a longer time than was asked for.
    given: Duration,
}

impl Session {
    pub fn new(
        settings: Settings,
        credentials: Arc<ArcSwap<Credentials>>,
        reconnect: Arc<Notify>,
        state: watch::Sender<ConnectionState>,
        events: mpsc::UnboundedSender<Event>,
    ) -> Self {
        Self {
            settings,
            credentials,
            reconnect,
            state,
            events,
            identity: Identity::default(),
            generation: 0,
            next: 0,
            heard: Instant::now(),
            given: Duration::ZERO,
        }
    }

    /// Says that its task has panicked, which has closed the connection.
    pub fn report_panic(&self, problem: &str) {
        self.state
            .send_replace(ConnectionState::Disconnected(problem.to_owned()));
    }

    /// Serves requests until the session is closed or all clients are dropped.
    pub async fn run(&mut self, requests: &mut mpsc::UnboundedReceiver<Request>) {
        let mut backoff = BACKOFF;
        loop {
            let server = self.settings.servers[self.next % self.settings.servers.len()].clone();
            let Some(connected) = self.connect(&server, requests).await else {
                return;
            };
            let why = match connected {
                Ok(connection) => {
                    backoff.reset();
                    match self.serve(connection, server, requests).await {
                        Ended::Closed => return,
                        Ended::Broken(why) => why,
                    }
                }
                Err(why) => why,
            };
            tracing::debug!(why, "zookeeper: not connected");
            self.state.send_replace(ConnectionState::Disconnected(why.clone()));
            self.next = self.next.wrapping_add(1);
            let pause = sleep(backoff.pause());
            if refuse_until(pause, requests, &why).await.is_none() {
                return;
            }
        }
    }

    /// Connects to a server, and refuses the requests that come meanwhile. None if the client was closed.
    async fn connect(
        &mut self,
        server: &str,
        requests: &mut mpsc::UnboundedReceiver<Request>,
    ) -> Option<Result<Connection, String>> {
        // The servers have ended a session that they have not heard from for its timeout. It is given up even if no
        // server says so: after a restore from an old copy all of them refuse a client that has seen newer changes.
        if self.heard.elapsed() > self.given.max(self.settings.session_timeout) {
            self.identity = Identity::default();
        }
        let credentials = self.credentials.load_full();
        let connecting = timeout(
            self.settings.connect_timeout,
            Connection::open(&self.settings, &credentials, server, &mut self.identity),
        );
        let why = match &*self.state.borrow() {
            ConnectionState::Disconnected(why) => why.clone(),
            ConnectionState::Connected(_) => String::new(),
        };
        let connected = refuse_until(connecting, requests, &why).await?;
        Some(connected.unwrap_or_else(|_| Err(format!("{server} did not answer"))))
    }

    async fn serve(
        &mut self,
        connection: Connection,
        server: String,
        requests: &mut mpsc::UnboundedReceiver<Request>,
    ) -> Ended {
        self.generation += 1;
        self.heard = Instant::now();
        self.given = connection.session_timeout();
        let connected = Connected {
            generation: self.generation,
            session: self.identity.session,
            server,
            refusal: None,
        };
        tracing::info!(
            server = connected.server,
            session = connected.session,
            "zookeeper: connected"
        );
        let generation = self.generation;
        self.state.send_replace(ConnectionState::Connected(connected));
        let mut connection = connection;
        let ended = tokio::select! {
            ended = connection.run(generation, requests, &self.events) => ended,
            () = self.reconnect.notified() => Ended::Broken("connecting with other credentials".into()),
        };
        // The state changes before the requests fail, so that nobody takes this connection for a live one.
        if let Ended::Broken(why) = &ended {
            self.state.send_replace(ConnectionState::Disconnected(why.clone()));
        }
        self.identity.zxid = self.identity.zxid.max(connection.zxid());
        self.heard = connection.heard();
        connection.fail_pending(&ended);
        ended
    }
}

/// Waits for `until`, and refuses the requests that come meanwhile. None if the client was closed.
async fn refuse_until<T>(
    until: impl Future<Output = T>,
    requests: &mut mpsc::UnboundedReceiver<Request>,
    why: &str,
) -> Option<T> {
    tokio::pin!(until);
    loop {
        tokio::select! {
            biased;
            done = &mut until => return Some(done),
            request = requests.recv() => {
                let request = request?;
                let is_close = request.code == opcode::CLOSE;
                let _ = request.answer.send(Err(Failure::NotSent(why.to_owned())));
                if is_close {
                    return None;
                }
            }
        }
    }
}
