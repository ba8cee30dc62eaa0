//! The nodes: each watched over by itself, asked all at once, and never waited for longer than a
//! majority needs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use redis::{Value, from_redis_value};
use tokio::time::{Instant, timeout_at};

use super::clock::Clocks;
use super::scripts;
use crate::backend::redis_server;
use crate::backend::redis_server::failure::{is_of_record, of_script};
use crate::backend::redis_server::subscriptions::Subscriptions;
use crate::backend::redis_server::marker::Marker;
use crate::backend::redis_server::node::Node;
use crate::backend::redis_server::script::{Ask, Script};
use crate::backend::redis_server::sentinel::Finder;
use crate::backend::redis_server::settings::{Servers, Settings};
use crate::backend::redis_server::topology::{StepRequirements, Topology};
use crate::backend::redis_server::quorum_member::QuorumMembers;
use crate::backend::{BackendError, Health};

/// One node.
pub struct QuorumNode {
    /// Its address, as `host:port`.
    pub name: String,
    /// The server.
    pub node: Arc<Node>,
    /// What is published there.
    pub hub: Subscriptions,
    _topology: Arc<Topology>,
}

/// All nodes of a store.
pub struct Nodes {
    /// In the order of the settings.
    pub all: Vec<QuorumNode>,
    /// What their clocks say.
    pub clocks: Arc<Clocks>,
    /// Whose last vote had a number too far ahead to count.
    too_far: Mutex<BTreeSet<usize>>,
    key_prefix: String,
    timeout: Duration,
}

/// What a node said to a question.
#[derive(Debug)]
pub enum Reply {
    /// Its answer: the first word, and what follows the node's time.
    Word(String, Vec<Value>),
    /// It may not vote: it may have forgotten.
    Quarantined,
    /// It cannot read the lock's record.
    Unreadable(BackendError),
    /// Nothing in time, or nothing that counts.
    Nothing,
}

/// What names a node's admission, if it may vote.
pub type Admission = Option<Vec<u8>>;

/// What is asked of every node.
#[derive(Debug, Clone)]
pub struct Question {
    /// The script.
    pub script: &'static Script,
    /// What the keys and the channel begin with.
    pub base: Arc<str>,
    /// The lock's name; for `NAMES`, nothing.
    pub lock: Arc<str>,
    /// The arguments behind those that every script has.
    pub args: Arc<Vec<Vec<u8>>>,
    /// Whether a node is asked that may not vote.
    pub all: bool,
    /// The admissions that it is bound to, where they are not those at its sending.
    pub bound: Option<Arc<Vec<Admission>>>,
}

impl Nodes {
    /// Begins to watch over the nodes.
    pub fn start(settings: &Arc<Settings>, node_timeout: Duration, servers: Vec<redis::ConnectionInfo>) -> Self {
        let clocks = Arc::new(Clocks::new(servers.len()));
        let company = QuorumMembers::new(servers.len());
        let voter = |(at, info): (usize, redis::ConnectionInfo)| {
            let own = Arc::new(Settings {
                servers: Servers::Standalone(info.clone()),
                ..Settings::clone(settings)
            });
            let key = marker_key(&settings.prefix);
            let (known, heard) = (Arc::clone(&clocks), Arc::clone(&clocks));
            let floor = Arc::new(move || known.floor());
            let past_all = Arc::new(move || heard.past_all());
            let told = Arc::clone(&clocks);
            let time = Arc::new(move |asked, now| told.heard(at, asked, now));
            let voter = redis_server::quorum_member::QuorumMember {
                at,
                company: Arc::clone(&company),
                floor,
                past_all,
                time,
            };
            let marker = Marker::of_voter(key, settings.first_start, settings.longest_ttl, voter);
            let name = info.addr().to_string();
            let node = Arc::new(Node::start(Arc::clone(&own), Finder::Fixed(info), marker, scripts::ALL));
            let topology = Arc::new(Topology::Single(Arc::clone(&node)));
            let hub = Subscriptions::start(own, &topology);
            QuorumNode {
                name,
                node,
                hub,
                _topology: topology,
            }
        };
        Self {
            all: servers.into_iter().enumerate().map(voter).collect(),
            clocks,
            too_far: Mutex::default(),
            key_prefix: settings.prefix.clone(),
            timeout: node_timeout,
        }
    }

    /// How many nodes decide.
    pub fn majority(&self) -> usize {
        self.all.len() / 2 + 1
    }

    /// The admissions of all nodes now.
    pub fn admissions(&self) -> Arc<Vec<Admission>> {
        let of = |voter: &QuorumNode| voter.node.admission().ok().flatten();
        Arc::new(self.all.iter().map(of).collect())
    }

    /// Asks every node at once.
    pub fn ask(self: &Arc<Self>, question: &Question) -> Round {
        self.ask_some(question, |_| true)
    }

    /// Asks these nodes at once.
    pub fn ask_some(self: &Arc<Self>, question: &Question, whom: impl Fn(usize) -> bool) -> Round {
        let pending: FuturesUnordered<_> = (0..self.all.len())
            .filter(|at| whom(*at))
            .map(|at| {
                let (voters, question) = (Arc::clone(self), question.clone());
                async move { (at, voters.one(at, &question).await) }.boxed()
            })
            .collect();
        let sent = Instant::now();
        Round {
            pending,
            sent,
            deadline: sent + self.timeout,
        }
    }

    async fn one(&self, at: usize, question: &Question) -> Reply {
        let node = &self.all[at].node;
        let known = match node.admission() {
            Err(_) => return Reply::Nothing,
            Ok(None) if !question.all => return Reply::Quarantined,
            Ok(admission) => admission,
        };
        let is_believed = known.is_some();
        let admission = known.unwrap_or_default();
        let bound = question.bound.as_ref().and_then(|bound| bound.get(at));
        let admission = bound.map_or(admission, |bound| bound.clone().unwrap_or_default());
        let Question { base, lock, .. } = question;
        let key = format!("{base}l:{lock}").into_bytes();
        let beside = [marker_key(&self.key_prefix), format!("{base}names").into_bytes()];
        let mut args = vec![admission, format!("{base}c").into_bytes(), lock.as_bytes().to_vec()];
        args.extend(question.args.iter().cloned());
        let ask = Ask {
            key: &key,
            beside: &[&beside[0], &beside[1]],
            args: &args,
            asking: false,
        };
        let asked = Instant::now();
        let answer = node.call(question.script, &ask, StepRequirements::Nothing).await;
        let read = answer.and_then(|answer| match answer {
            Ok(answer) => read(answer.value),
            Err(error) => Err(of_script(&error)),
        });
        match read {
            Ok((word, now, rest)) => {
                self.clocks.heard(at, asked, now);
                if word == "untrusted" {
                    if is_believed {
                        // Its marker changed: what is known of it here is out of date.
                        node.suspect();
                    }
                    return Reply::Nothing;
                }
                Reply::Word(word, rest)
            }
            Err(error) => {
                tracing::debug!(node = %self.all[at].name, %error, "a node did not answer");
                if is_of_record(&error) {
                    return Reply::Unreadable(error);
                }
                if matches!(error, BackendError::Unavailable { .. }) {
                    node.suspect();
                }
                Reply::Nothing
            }
        }
    }

    /// Makes sure that a majority may vote.
    ///
    /// # Errors
    /// Why not, with nothing sent.
    pub fn may_vote(&self) -> Result<(), BackendError> {
        let votes = |voter: &&QuorumNode| voter.node.admission().is_ok_and(|admission| admission.is_some());
        if self.all.iter().filter(votes).count() >= self.majority() {
            return Ok(());
        }
        Err(self.trouble(false))
    }

    /// Notes whose votes counted and whose did not, and logs when that changes.
    pub fn note_too_far(&self, counted: &[(usize, u64)], too_far: &[(usize, u64)]) {
        let mut noted = self.too_far.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, _) in counted {
            if noted.remove(at) {
                tracing::info!(node = %self.all[*at].name, "the node's numbers count again");
            }
        }
        for (at, number) in too_far {
            if noted.insert(*at) {
                let node = &self.all[*at].name;
                tracing::warn!(%node, number, "the node's numbers are far past the clocks of the others: correct its clock, empty it");
            }
        }
    }

    /// The same where votes did not count.
    pub fn trouble_with(&self, too_far: &[(usize, u64)]) -> BackendError {
        let names: Vec<&str> = too_far.iter().map(|(at, _)| self.all[*at].name.as_str()).collect();
        match self.trouble(true) {
            BackendError::NoQuorum { reason, sent } if !names.is_empty() => {
                let names = names.join(", ");
                let reason = format!("{reason}; the numbers of {names} are far past the clocks of the others");
                BackendError::NoQuorum { reason, sent }
            }
            other => other,
        }
    }

    /// Why there was no majority: what is wrong with which nodes, and whether that only is a
    /// quarantine. A step that was sent may have had an effect, so it never was a quarantine.
    pub fn trouble(&self, sent: bool) -> BackendError {
        let health: Vec<Health> = self
            .all
            .iter()
            .map(|voter| voter.node.health().borrow().clone())
            .collect();
        match self.sum(&health) {
            Health::Quarantined { until, reason } if !sent => BackendError::Quarantined {
                left: until.saturating_duration_since(Instant::now()),
                reason,
            },
            Health::Unavailable { reason } | Health::Quarantined { reason, .. } => BackendError::NoQuorum { reason, sent },
            Health::Serving => BackendError::NoQuorum {
                reason: "too few nodes answered in time".into(),
                sent,
            },
        }
    }

    /// How the store is when its nodes are so.
    pub fn sum(&self, health: &[Health]) -> Health {
        let serving = health.iter().filter(|one| **one == Health::Serving).count();
        if serving >= self.majority() {
            return Health::Serving;
        }
        let mut ends: Vec<Instant> = health
            .iter()
            .filter_map(|one| match one {
                Health::Quarantined { until, .. } => Some(*until),
                _ => None,
            })
            .collect();
        ends.sort_unstable();
        let reason = self.remarks(health);
        match ends.get(self.majority() - serving - 1) {
            Some(until) => Health::Quarantined { until: *until, reason },
            None => Health::Unavailable { reason },
        }
    }

    /// What is to be said of the nodes that do not vote.
    pub fn remarks(&self, health: &[Health]) -> String {
        let remark = |(voter, health): (&QuorumNode, &Health)| match health {
            Health::Serving => None,
            Health::Quarantined { .. } => Some(format!("{} is in quarantine", voter.name)),
            Health::Unavailable { reason } => Some(format!("{} is away: {reason}", voter.name)),
        };
        let remarks: Vec<String> = self.all.iter().zip(health).filter_map(remark).collect();
        remarks.join("; ")
    }
}

/// Not the key of a Redis backend's marker: both may use one server under one prefix.
fn marker_key(prefix: &str) -> Vec<u8> {
    format!("{prefix}:voter").into_bytes()
}

fn read(value: Value) -> Result<(String, u64, Vec<Value>), BackendError> {
    let broken = |error: redis::ParsingError| crate::backend::redis_server::failure::broken(error);
    let mut values: Vec<Value> = from_redis_value(value).map_err(broken)?;
    if values.len() < 2 {
        return Err(crate::backend::redis_server::failure::broken("an answer is too short"));
    }
    let rest = values.split_off(2);
    let mut values = values.into_iter();
    let mut next = || values.next().unwrap_or(Value::Nil);
    let word = from_redis_value(next()).map_err(broken)?;
    Ok((word, from_redis_value(next()).map_err(broken)?, rest))
}

/// The answers of one round as they come. Dropped, it lets the rest arrive without being heard: what
/// was sent is not taken back, and a script that a node does not know yet is sent to it after all.
pub struct Round {
    pending: FuturesUnordered<BoxFuture<'static, (usize, Reply)>>,
    /// When it was sent.
    pub sent: Instant,
    deadline: Instant,
}

impl Round {
    /// The next answer; nothing when all have answered or the time is over.
    pub async fn next(&mut self) -> Option<(usize, Reply)> {
        timeout_at(self.deadline, self.pending.next()).await.ok().flatten()
    }

    /// How many may still answer.
    pub fn outstanding(&self) -> usize {
        if Instant::now() < self.deadline {
            self.pending.len()
        } else {
            0
        }
    }

    /// Waits no longer than this for the rest.
    pub fn shorten_deadline(&mut self, rest: Duration) {
        self.deadline = self.deadline.min(Instant::now() + rest);
    }
}

impl Round {
    /// Lets the rest arrive, however late, with nobody waiting for it.
    pub fn release(mut self, mut each: impl FnMut(usize, Reply) + Send + 'static) {
        self.let_go(move |(at, said)| each(at, said));
    }

    fn let_go(&mut self, mut each: impl FnMut((usize, Reply)) + Send + 'static) {
        if self.pending.is_empty() {
            return;
        }
        let mut rest = std::mem::take(&mut self.pending);
        // Each is bounded by its connection's own timeout.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                while let Some(answer) = rest.next().await {
                    each(answer);
                }
            });
        }
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        self.let_go(drop);
    }
}
