//! A simulated ensemble: three servers that agree on a log, each with a copy that lags behind; sessions that expire, and
//! connections that break with requests under way.
//!
//! It keeps what its kind of store promises and no more, and all chances follow from a seed.
//!
//! - [`Steps::AllOrNone`] is ZooKeeper. Requests of one connection take effect in their order, and so do its answers and
//!   events. A read sees a copy that may be old, but never older than the connection has seen. A request that a broken
//!   connection left behind may take effect at any time until its session has expired.
//! - [`Steps::Independent`] is etcd behind its driver. Requests under way have no order, nor have answers and events, except
//!   that events tell one another's order, and that a list follows the watch of its node. Reads are linearizable, and a
//!   copy only delays events. A request that a broken connection left behind may take effect at any time, and even be
//!   answered then.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::Backend;
use fencepost_core::backend::local_clock::Clock;
use fencepost_core::backend::tree::store::{Committed, Event, EventKind, Failure, Op, Reason, Stat};
use fencepost_core::backend::tree::{Engine, EngineSettings};
use fencepost_core::name::Namespace;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep};

use self::nodes::{Change, Happened, Nodes};

mod connection;
mod independent;
pub mod mutants;
mod nodes;
mod order;

pub use self::connection::Connection;
use self::independent::{Commit, Refusal};
use self::mutants::{Condition, Role};
use crate::dice::Dice;

/// How long the ensemble keeps the session of a silent client.
pub const SESSION: Duration = Duration::from_secs(6);
/// How long a client of independent steps waits for an answer.
const ANSWERED: Duration = Duration::from_secs(5);
const SERVERS: usize = 3;

/// What may happen to a request, each with its probability in a thousand.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// How long each way takes, in microseconds.
    pub delay: Range<u64>,
    /// How long a server's copy lags behind, in microseconds.
    pub lag: Range<u64>,
    /// Its connection breaks before it arrives. Of independent steps half of these goes nowhere, and nothing breaks.
    pub cut: u64,
    /// It takes effect, and its connection breaks before the answer.
    pub unanswered: u64,
    /// Of the commits under way over a connection that breaks, it arrives later; a read of independent steps fails later.
    pub late: u64,
    /// How much later, in microseconds.
    pub later: Range<u64>,
    /// A client whose connection broke stays away for longer than its session lives.
    pub away: u64,
}

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Cut,
    Unanswered,
    /// It goes nowhere, and its connection goes on.
    NotSent,
}

/// How the steps of a commit go together, which also says what else the store promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steps {
    AllOrNone,
    Independent,
}

/// What a request asks.
#[derive(Debug, Clone)]
enum Ask {
    Commit(Vec<Op>, Vec<Vec<Op>>),
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
    Committed(Committed),
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
    /// It is of an old copy that was put back, and ends: that takes longer than a session lives.
    is_of_copy: bool,
    /// Counts its connections.
    connections: u64,
    /// The writes that broken connections left behind.
    late: VecDeque<Ask>,
}

/// An old copy of the store.
#[derive(Debug, Clone)]
struct Copy {
    nodes: Nodes,
    zxid: i64,
    sessions: BTreeSet<i64>,
}

#[derive(Debug)]
struct State {
    steps: Steps,
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
    /// The nodes that a commit was refused for, because it would have written them twice.
    written_twice: Vec<String>,
    /// What a commit did against the order of a queue.
    out_of_order: Option<String>,
    /// What an old copy has.
    copy: Option<Copy>,
    /// Counts the times that an old copy was put back.
    restored: u64,
    /// Counts the lists of locks.
    lists: usize,
    /// A hash of all changes, and their times.
    history: DefaultHasher,
    begun: Instant,
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
    pub fn new(steps: Steps, seed: u64, faults: Faults) -> Self {
        let state = State {
            steps,
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
            written_twice: Vec::new(),
            out_of_order: None,
            copy: None,
            restored: 0,
            lists: 0,
            history: DefaultHasher::new(),
            begun: Instant::now(),
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

    /// The nodes that a commit was refused for, because it would have written them twice.
    pub fn written_twice(&self) -> Vec<String> {
        self.state.lock().written_twice.clone()
    }

    /// What a commit did against the order of a queue.
    pub fn out_of_order(&self) -> Option<String> {
        self.state.lock().out_of_order.clone()
    }

    /// How many times a lock was listed.
    pub fn lists(&self) -> usize {
        self.state.lock().lists
    }

    /// A hash of all changes so far, and their times.
    pub fn history(&self) -> u64 {
        self.state.lock().history.finish()
    }

    /// Other faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    /// All connections break, as in an election. ZooKeeper goes on with much larger numbers.
    pub fn elect(&self) {
        let mut state = self.state.lock();
        if state.steps == Steps::AllOrNone {
            state.zxid += 1 << 32;
        }
        drop(state);
        self.cut_all();
    }

    /// All connections break.
    pub fn cut_all(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Keeps a copy of the store.
    pub fn keep_copy(&self) {
        let mut state = self.state.lock();
        state.copy = Some(Copy {
            nodes: state.nodes.clone(),
            zxid: state.zxid,
            sessions: state.sessions.keys().copied().collect(),
        });
    }

    /// Puts the copy back. The numbers of transactions go back with it, but for an election that ZooKeeper begins with. No
    /// request arrives that was sent before.
    pub fn put_back(&self) {
        let mut state = self.state.lock();
        let Some(copy) = state.copy.clone() else { return };
        state.restored += 1;
        state.zxid = match state.steps {
            Steps::AllOrNone => ((copy.zxid >> 32) + 1) << 32,
            Steps::Independent => copy.zxid,
        };
        state.servers = std::array::from_fn(|_| Server {
            nodes: copy.nodes.clone(),
            applied: 0,
        });
        state.nodes = copy.nodes;
        state.log.clear();
        state.links.clear();
        let before = std::mem::take(&mut state.sessions);
        let again = |id| {
            let connections = before.get(&id).map_or(0, |session| session.connections) + 1;
            let session = Session {
                connections,
                is_of_copy: true,
                ..Session::default()
            };
            (id, session)
        };
        state.sessions = copy.sessions.iter().copied().map(again).collect();
        let silent: Vec<_> = copy
            .sessions
            .iter()
            .map(|id| (*id, state.sessions[id].connections))
            .collect();
        drop(state);
        for (session, connections) in silent {
            self.expire_later(session, connections);
        }
        self.cut_all();
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

    /// What happens to a request that arrives.
    fn meets(&self, ask: &Ask) -> Option<Fault> {
        let mut state = self.state.lock();
        let (cut, unanswered) = (state.faults.cut, state.faults.unanswered);
        let (is_cut, is_unanswered) = (state.dice.happens(cut), state.dice.happens(unanswered));
        let is_alone = || matches!(ask, Ask::Commit(..) | Ask::Get(_) | Ask::Children(_));
        match (is_cut, is_unanswered) {
            (true, _) if state.steps == Steps::Independent && is_alone() && state.dice.heads() => Some(Fault::NotSent),
            (true, _) => Some(Fault::Cut),
            (_, true) => Some(Fault::Unanswered),
            _ => None,
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
    fn broken(&self, link: u64, left: Vec<(Ask, AnswerTo)>) {
        let mut state = self.state.lock();
        let removed = state.links.remove(&link);
        let id = removed.as_ref().map(|link| link.session);
        if let Some(session) = id.and_then(|id| state.sessions.get_mut(&id)) {
            session.link = None;
        }
        let (late, later) = (state.faults.late, state.faults.later.clone());
        let mut after = Vec::new();
        for (ask, to) in left {
            let is_commit = matches!(ask, Ask::Commit(..));
            // A read of independent steps goes its own way, and fails when nobody has answered it for long.
            let is_own_way = matches!(ask, Ask::Get(_) | Ask::Children(_)) && state.steps == Steps::Independent;
            let is_late = (is_commit || is_own_way) && state.dice.happens(late);
            let (Some(id), true) = (id, is_late) else {
                let _ = to.send(Err(lost()));
                continue;
            };
            let arrives = state.dice.within(&later);
            match state.steps {
                Steps::AllOrNone => {
                    let Some(session) = state.sessions.get_mut(&id) else {
                        continue;
                    };
                    session.late.push_back(ask);
                    let _ = to.send(Err(lost()));
                    after.push((arrives, None));
                }
                Steps::Independent => {
                    let to = if !is_commit || arrives < ANSWERED && state.dice.heads() {
                        Some(to)
                    } else {
                        to.send(Err(lost())).map_or(None, |()| None)
                    };
                    let after_all = if is_commit { arrives } else { arrives.min(ANSWERED) };
                    after.push((after_all, Some((ask, to))));
                }
            }
        }
        let connections = id.and_then(|id| Some((id, state.sessions.get(&id)?.connections)));
        let restored = state.restored;
        drop(state);
        if let Some((id, connections)) = connections {
            self.expire_later(id, connections);
        }
        for (after, one) in after {
            let (ensemble, id) = (self.clone(), id.unwrap_or_default());
            tokio::spawn(async move {
                sleep(after).await;
                ensemble.arrive_late(id, one, restored);
            });
        }
    }

    /// A write that a broken connection left behind arrives: this one, or the first one of its session.
    fn arrive_late(&self, id: i64, one: Option<(Ask, Option<AnswerTo>)>, restored: u64) {
        let mut state = self.state.lock();
        if state.restored != restored {
            return;
        }
        let first = |state: &mut State| Some((state.sessions.get_mut(&id)?.late.pop_front()?, None));
        if let Some((Ask::Commit(guards, steps), to)) = one.or_else(|| first(&mut state)) {
            let committed = state.commit((&guards, &steps), id);
            let log = state.log.len();
            drop(state);
            self.follow(log);
            if let Some(to) = to {
                let _ = to.send(committed.map(Answer::Committed));
            }
        }
    }
}

fn lost() -> Failure {
    Failure::Unavailable("the connection was lost".into())
}

impl State {
    /// A connection of this session, or of a new one if that has expired.
    fn connect(&mut self, session: Option<i64>, sends: mpsc::UnboundedSender<Sent>) -> (u64, i64) {
        let server = self.dice.index(SERVERS);
        let link = self.next;
        self.next += 1;
        let is_kept = |session: &i64| self.sessions.get(session).is_some_and(|session| !session.is_of_copy);
        let known = session.filter(is_kept);
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
        if self.steps == Steps::AllOrNone {
            let log = self.log.len();
            self.catch_up(server, log);
        }
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

    /// Appends a transaction to the log.
    fn note(&mut self, changes: Vec<Change>) {
        let out_of_order = || order::broken(&self.nodes, &changes);
        self.out_of_order = self.out_of_order.take().or_else(out_of_order);
        self.begun.elapsed().hash(&mut self.history);
        for change in &changes {
            change.path.hash(&mut self.history);
            let modified = change.node.as_ref().map(|node| node.stat.modified);
            modified.hash(&mut self.history);
        }
        self.log.push(changes);
    }

    /// Ends a session with its ephemeral nodes. Returns how long the log is then.
    fn end_session(&mut self, session: i64) -> usize {
        let ephemeral = self.nodes.of_session(session);
        let ops: Vec<_> = ephemeral.into_iter().map(|path| Op::delete(path, -1)).collect();
        self.zxid += 1;
        if let Ok((_, changes)) = self.nodes.multi(&ops, (0, self.zxid), |_| false) {
            self.note(changes);
        }
        self.sessions.remove(&session);
        self.log.len()
    }

    fn commit(&mut self, commit: (&[Op], &[Vec<Op>]), session: i64) -> Result<Committed, Failure> {
        self.zxid += 1;
        match self.steps {
            Steps::AllOrNone => self.commit_in_order(commit, session),
            Steps::Independent => self.commit_independent(commit, session),
        }
    }

    fn commit_in_order(&mut self, (guards, steps): (&[Op], &[Vec<Op>]), session: i64) -> Result<Committed, Failure> {
        let Self { nodes, ignored, .. } = self;
        let ops = Committed::ops(guards, steps);
        let is_ignored = |condition| ignored.as_ref() == Some(&condition);
        let done = match nodes.multi(&ops, (session, self.zxid), is_ignored) {
            Ok((done, changes)) => {
                self.note(changes);
                Ok(done)
            }
            Err((index, reason)) => {
                self.refused.insert(Condition::of(&ops[index], &reason));
                Err(Failure::Refused { index, reason })
            }
        };
        let steps: Vec<_> = steps.iter().map(Vec::len).collect();
        Committed::of(done, guards.len(), &steps)
    }

    fn commit_independent(&mut self, (guards, steps): (&[Op], &[Vec<Op>]), session: i64) -> Result<Committed, Failure> {
        let is_live = self.sessions.contains_key(&session);
        let ignored = self.ignored.as_ref();
        let mut commit = Commit {
            nodes: &mut self.nodes,
            session: is_live.then_some(session),
            revision: self.zxid,
            ignored: |condition: &Condition| ignored == Some(condition),
            refused: Vec::new(),
            changes: Vec::new(),
            appended: 0,
        };
        let committed = commit.apply(guards, steps);
        let (refused, changes) = (commit.refused, commit.changes);
        self.refused.extend(refused);
        self.note(changes);
        committed.map_err(|refusal| match refusal {
            Refusal::Guard(index, reason) => Failure::Refused { index, reason },
            Refusal::SessionGone => Failure::NotSent("the session has ended".into()),
            Refusal::WrittenTwice(path) => {
                let reason = Reason::Other(format!("{path} is written twice"));
                self.written_twice.push(path);
                Failure::Error(reason)
            }
        })
    }

    /// The nodes that a server reads: its copy, unless reads are linearizable.
    fn read(&self, server: usize) -> &Nodes {
        match self.steps {
            Steps::AllOrNone => &self.servers[server].nodes,
            Steps::Independent => &self.nodes,
        }
    }

    /// None if the connection is no longer the session's.
    fn apply(&mut self, id: u64, ask: &Ask) -> Option<Result<Answer, Failure>> {
        let link = self.links.get(&id)?;
        let (server, session) = (link.server, link.session);
        let log = self.log.len();
        let is_in_order = self.steps == Steps::AllOrNone;
        // A read happens at some time in the lag of its server.
        if is_in_order && self.dice.heads() {
            let applied = self.servers[server].applied;
            let read = applied + self.dice.index(log - applied + 1);
            self.catch_up(server, read);
        }
        let answer = match ask {
            Ask::Commit(guards, steps) => {
                let committed = self.commit((guards, steps), session);
                if is_in_order {
                    self.catch_up(server, self.log.len());
                }
                committed.map(Answer::Committed)
            }
            Ask::Get(path) => {
                let node = self.read(server).get(path);
                Ok(Answer::Data(node.map(|node| (node.data.clone(), node.stat))))
            }
            Ask::Children(path) => {
                self.lists += usize::from(Role::of(path) == Role::Lock);
                let nodes = self.read(server);
                let names = nodes.children(path);
                let stat = match self.steps {
                    Steps::AllOrNone => nodes.get(path).map(|node| node.stat),
                    // Only the node of a lock is absent without children.
                    Steps::Independent => {
                        let is_there = Role::of(path) != Role::Lock || !names.is_empty();
                        is_there.then(|| Stat::of_new(0, 0))
                    }
                };
                Ok(Answer::Children(stat.map(|stat| (names, stat))))
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
