//! A simulated ensemble: three servers that agree on a log, each with a copy that lags behind; sessions that expire, and
//! connections that break with requests under way.
//!
//! It keeps what ZooKeeper promises and no more. Requests of one connection take effect in their order, and so do its
//! answers and events. A read sees a copy that may be old, but never older than the connection has seen. A request
//! that a broken connection left behind may take effect at any time until its session has expired. All chances follow from a seed.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::Backend;
use fencepost::backend::local_clock::Clock;
use fencepost::backend::tree::store::{Done, Event, EventKind, Failure, Op, Stat};
use fencepost::backend::tree::{Engine, EngineSettings};
use fencepost::name::Namespace;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

use self::nodes::{Change, Happened, Nodes};

mod connection;
pub mod mutants;
mod nodes;

pub use self::connection::Connection;
use self::mutants::Condition;
use crate::dice::Dice;

/// How long the ensemble keeps the session of a silent client.
pub const SESSION: Duration = Duration::from_secs(6);
const SERVERS: usize = 3;

/// What may happen to a request, each with its probability in a thousand.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// How long each way takes, in microseconds.
    pub delay: Range<u64>,
    /// How long a server's copy lags behind, in microseconds.
    pub lag: Range<u64>,
    /// Its connection breaks before it arrives.
    pub cut: u64,
    /// It takes effect, and its connection breaks before the answer.
    pub unanswered: u64,
    /// Of the requests under way over a connection that breaks, it arrives later.
    pub late: u64,
    /// How much later, in microseconds.
    pub later: Range<u64>,
    /// A client whose connection broke stays away for longer than its session lives.
    pub away: u64,
}

/// What a request asks.
#[derive(Debug, Clone)]
enum Ask {
    Multi(Vec<Op>),
    Get(String),
    Children(String),
    Sync,
    Watch(String),
    Unwatch(String),
    Close,
}

/// What it is answered.
#[derive(Debug)]
enum Answer {
    Done(Vec<Done>),
    Data(Option<(Vec<u8>, Stat)>),
    Children(Option<(Vec<String>, Stat)>),
    Nothing,
}

type AnswerTo = oneshot::Sender<Result<Answer, Failure>>;

/// What a server sends over a connection, in this order.
#[derive(Debug)]
enum Sent {
    Answer(AnswerTo, Result<Answer, Failure>),
    Event(Event),
}

/// A server: its copy of the nodes has so many transactions of the log.
#[derive(Debug, Default)]
struct Server {
    nodes: Nodes,
    applied: usize,
}

/// A connection as its server knows it.
#[derive(Debug)]
struct Link {
    server: usize,
    session: i64,
    watched: HashSet<String>,
    sends: mpsc::UnboundedSender<Sent>,
}

#[derive(Debug, Default)]
struct Session {
    /// The connection that it has.
    link: Option<u64>,
    /// Counts its connections.
    connections: u64,
    /// The writes that broken connections left behind.
    late: VecDeque<Vec<Op>>,
}

#[derive(Debug)]
struct State {
    nodes: Nodes,
    zxid: i64,
    log: Vec<Vec<Change>>,
    servers: [Server; SERVERS],
    sessions: HashMap<i64, Session>,
    links: HashMap<u64, Link>,
    next: u64,
    dice: Dice,
    faults: Faults,
    /// A condition that refuses nothing.
    ignored: Option<Condition>,
    /// The conditions that have refused something.
    refused: BTreeSet<Condition>,
}

/// An ensemble, which any number of replicas use.
#[derive(Debug, Clone)]
pub struct Ensemble {
    state: Arc<Mutex<State>>,
    /// Counts the times that all connections were cut.
    cuts: watch::Sender<u64>,
}

impl Ensemble {
    /// An empty one, whose faults follow from a seed.
    pub fn new(seed: u64, faults: Faults) -> Self {
        let state = State {
            nodes: Nodes::default(),
            zxid: 1 << 32,
            log: Vec::new(),
            servers: Default::default(),
            sessions: HashMap::new(),
            links: HashMap::new(),
            next: 1,
            dice: Dice::new(seed),
            faults,
            ignored: None,
            refused: BTreeSet::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            cuts: watch::Sender::new(0),
        }
    }

    /// Opens the engine of one server with these clocks.
    pub fn engine(&self, clock: Arc<dyn Clock>) -> (Arc<dyn Backend>, Arc<Connection>) {
        let (sender, events) = mpsc::unbounded_channel();
        let connection = Connection::open(self, sender);
        let settings = EngineSettings {
            kind: "tree",
            root: "/fencepost".into(),
            timeout: Duration::from_secs(5),
            max_request: 512 * 1024,
            clock,
        };
        let namespace = Namespace::new("test").expect("a name");
        let tree: Arc<Connection> = Arc::clone(&connection);
        (Engine::open(tree, events, &namespace, &settings), connection)
    }

    /// A condition refuses nothing from now on.
    pub fn ignore(&self, condition: Condition) {
        self.state.lock().ignored = Some(condition);
    }

    /// The conditions that have refused something.
    pub fn refused(&self) -> BTreeSet<Condition> {
        self.state.lock().refused.clone()
    }

    /// Other faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    /// All connections break, as in an election, which goes on with much larger numbers.
    pub fn elect(&self) {
        self.state.lock().zxid += 1 << 32;
        self.cut_all();
    }

    /// All connections break.
    pub fn cut_all(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// The paths that contain this.
    pub fn paths(&self, part: &str) -> Vec<String> {
        self.state.lock().nodes.paths(part)
    }

    /// Ends a session unless it has a connection again.
    fn expire_later(&self, session: i64, connections: u64) {
        let ensemble = self.clone();
        tokio::spawn(async move {
            let slack = ensemble.state.lock().dice.within(&(0..2_000_000));
            sleep(SESSION + slack).await;
            ensemble.expire(session, connections);
        });
    }

    fn expire(&self, session: i64, connections: u64) {
        let mut state = self.state.lock();
        let is_silent = |session: &Session| session.link.is_none() && session.connections == connections;
        if state.sessions.get(&session).is_some_and(is_silent) {
            let applied = state.end_session(session);
            drop(state);
            self.follow(applied);
        }
    }

    /// Lets the other servers catch up with the log.
    fn follow(&self, log: usize) {
        for server in 0..SERVERS {
            let lag = {
                let mut state = self.state.lock();
                let lag = state.faults.lag.clone();
                state.dice.within(&lag)
            };
            let ensemble = self.clone();
            tokio::spawn(async move {
                sleep(lag).await;
                ensemble.state.lock().catch_up(server, log);
            });
        }
    }

    /// What a request that arrives does.
    fn apply(&self, link: u64, ask: &Ask) -> Option<Result<Answer, Failure>> {
        let mut state = self.state.lock();
        let log = state.log.len();
        let answer = state.apply(link, ask);
        let now = state.log.len();
        drop(state);
        if now > log {
            self.follow(now);
        }
        answer
    }

    /// A connection has broken; these requests of it were not answered, and may arrive later.
    fn broken(&self, link: u64, left: Vec<Ask>) {
        let mut state = self.state.lock();
        let Some(Link { session: id, .. }) = state.links.remove(&link) else {
            return;
        };
        let late = state.faults.late;
        let mut kept = VecDeque::new();
        for ask in left {
            if let Ask::Multi(ops) = ask
                && state.dice.happens(late)
            {
                kept.push_back(ops);
            }
        }
        let later = state.faults.later.clone();
        let after: Vec<_> = kept.iter().map(|_| state.dice.within(&later)).collect();
        let Some(session) = state.sessions.get_mut(&id) else {
            return;
        };
        session.link = None;
        session.late.extend(kept);
        let connections = session.connections;
        drop(state);
        self.expire_later(id, connections);
        for after in after {
            let ensemble = self.clone();
            tokio::spawn(async move {
                sleep(after).await;
                ensemble.arrive_late(id);
            });
        }
    }

    /// The first of the writes that a session's broken connections left behind arrives.
    fn arrive_late(&self, id: i64) {
        let mut state = self.state.lock();
        let late = state.sessions.get_mut(&id).and_then(|session| session.late.pop_front());
        if let Some(ops) = late {
            let _ = state.commit(&ops, id);
            let log = state.log.len();
            drop(state);
            self.follow(log);
        }
    }
}

impl State {
    /// A connection of this session, or of a new one if that has expired.
    fn connect(&mut self, session: Option<i64>, sends: mpsc::UnboundedSender<Sent>) -> (u64, i64) {
        let server = self.dice.index(SERVERS);
        let link = self.next;
        self.next += 1;
        let known = session.filter(|session| self.sessions.contains_key(session));
        let session = known.unwrap_or_else(|| {
            let id = 1 + self.dice.below(1 << 60).cast_signed();
            self.sessions.insert(id, Session::default());
            id
        });
        if let Some(known) = self.sessions.get_mut(&session) {
            known.connections += 1;
            known.link = Some(link);
        }
        // A server that lags behind what the client has seen refuses it, so that it comes to one that does not.
        let log = self.log.len();
        self.catch_up(server, log);
        let new = Link {
            server,
            session,
            watched: HashSet::new(),
            sends,
        };
        self.links.insert(link, new);
        (link, session)
    }

    /// Applies the log up to here to a server's copy, and tells those who watch.
    fn catch_up(&mut self, server: usize, log: usize) {
        let Self {
            servers,
            links,
            log: all,
            ..
        } = self;
        let Some(copy) = servers.get_mut(server) else { return };
        while copy.applied < log.min(all.len()) {
            for change in &all[copy.applied] {
                copy.nodes.apply(change);
                let Some(happened) = change.happened else { continue };
                let kind = match happened {
                    Happened::Created => EventKind::Created,
                    Happened::Changed => EventKind::Changed,
                    Happened::Deleted => EventKind::Deleted,
                };
                let is_below = |watched: &String| {
                    let rest = change.path.strip_prefix(watched.as_str());
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                };
                for link in links.values().filter(|link| link.server == server) {
                    if link.watched.iter().any(is_below) {
                        let path = change.path.clone();
                        let _ = link.sends.send(Sent::Event(Event { kind, path }));
                    }
                }
            }
            copy.applied += 1;
        }
    }

    /// Ends a session with its ephemeral nodes. Returns how long the log is then.
    fn end_session(&mut self, session: i64) -> usize {
        let ephemeral = self.nodes.of_session(session);
        let ops: Vec<_> = ephemeral.into_iter().map(|path| Op::delete(path, -1)).collect();
        self.zxid += 1;
        if let Ok((_, changes)) = self.nodes.multi(&ops, (0, self.zxid), |_| false) {
            self.log.push(changes);
        }
        self.sessions.remove(&session);
        self.log.len()
    }

    fn commit(&mut self, ops: &[Op], session: i64) -> Result<Vec<Done>, Failure> {
        let Self { nodes, ignored, .. } = self;
        self.zxid += 1;
        match nodes.multi(ops, (session, self.zxid), |condition| {
            ignored.as_ref() == Some(&condition)
        }) {
            Ok((done, changes)) => {
                self.log.push(changes);
                Ok(done)
            }
            Err((index, reason)) => {
                self.refused.insert(Condition::of(&ops[index], &reason));
                Err(Failure::Refused { index, reason })
            }
        }
    }

    /// None if the connection is no longer the session's.
    fn apply(&mut self, id: u64, ask: &Ask) -> Option<Result<Answer, Failure>> {
        let link = self.links.get(&id)?;
        let (server, session) = (link.server, link.session);
        let log = self.log.len();
        // A read happens at some time in the lag of its server.
        if self.dice.heads() {
            let applied = self.servers[server].applied;
            let read = applied + self.dice.index(log - applied + 1);
            self.catch_up(server, read);
        }
        let answer = match ask {
            Ask::Multi(ops) => {
                let done = self.commit(ops, session);
                self.catch_up(server, self.log.len());
                done.map(Answer::Done)
            }
            Ask::Get(path) => {
                let node = self.servers[server].nodes.get(path);
                Ok(Answer::Data(node.map(|node| (node.data.clone(), node.stat))))
            }
            Ask::Children(path) => {
                let nodes = &self.servers[server].nodes;
                Ok(Answer::Children(
                    nodes.get(path).map(|node| (nodes.children(path), node.stat)),
                ))
            }
            Ask::Sync => {
                self.catch_up(server, log);
                Ok(Answer::Nothing)
            }
            Ask::Watch(path) => {
                self.links.get_mut(&id)?.watched.insert(path.clone());
                Ok(Answer::Nothing)
            }
            Ask::Unwatch(path) => {
                self.links.get_mut(&id)?.watched.remove(path);
                Ok(Answer::Nothing)
            }
            Ask::Close => {
                self.end_session(session);
                Ok(Answer::Nothing)
            }
        };
        Some(answer)
    }
}
