//! The nodes: each monitored independently, queried all at once, and awaited no longer than a
//! majority needs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{Value, from_redis_value};
use tokio::time::{Instant, timeout_at};

use super::clock::Clocks;
use super::quorum_member::{QuorumMember, QuorumMembers};
use super::scripts;
use crate::backend::redis_server::failure::{broken, is_of_record, of_script};
use crate::backend::redis_server::marker::Marker;
use crate::backend::redis_server::node::Node;
use crate::backend::redis_server::reply::Values;
use crate::backend::redis_server::script::{Script, ScriptCall, StepRequirements};
use crate::backend::redis_server::sentinel::Finder;
use crate::backend::redis_server::settings::{Servers, Settings};
use crate::backend::redis_server::subscriptions::Subscriptions;
use crate::backend::redis_server::topology::Topology;
use crate::backend::{BackendError, Health};

/// One node.
pub struct QuorumNode {
    /// Its address, as `host:port`.
    pub name: String,
    /// The server.
    pub node: Arc<Node>,
    /// The node's published messages.
    pub subscriptions: Subscriptions,
    _topology: Arc<Topology>,
}

/// All nodes of a store.
pub struct Nodes {
    /// In the order of the settings.
    pub all: Vec<QuorumNode>,
    /// Estimates of their clocks.
    pub clocks: Arc<Clocks>,
    /// The nodes whose last vote had a number too far ahead to count.
    too_far: Mutex<BTreeSet<usize>>,
    key_prefix: String,
    timeout: Duration,
}

/// A node's reply to a request.
#[derive(Debug)]
pub enum Reply {
    /// The script's reply: its status word, and the values after the node's time.
    Status(String, Values),
    /// It is not admitted: it may have lost leases.
    Quarantined,
    /// It cannot read the lock's record.
    Unreadable(BackendError),
    /// No reply in time, or a reply that does not count.
    Nothing,
}

/// The id of a node's admission, if it is admitted.
pub type Admission = Option<Vec<u8>>;

/// A request to the nodes.
#[derive(Debug, Clone)]
pub struct Request {
    /// The script.
    pub script: &'static Script,
    /// The prefix of keys and of the channel.
    pub base: Arc<str>,
    /// The lock's name; empty for `NAMES`.
    pub lock: Arc<str>,
    /// The arguments after those that every script has.
    pub args: Arc<Vec<Vec<u8>>>,
    /// Whether nodes that are not admitted are queried too.
    pub all: bool,
    /// The admissions under which the request counts, if they are not those at its sending.
    pub bound: Option<Arc<Vec<Admission>>>,
}

impl Nodes {
    /// Starts to monitor the nodes.
    pub fn start(settings: &Arc<Settings>, node_timeout: Duration, servers: Vec<redis::ConnectionInfo>) -> Self {
        let clocks = Arc::new(Clocks::new(servers.len()));
        let members = QuorumMembers::new(servers.len());
        let member = |(at, info): (usize, redis::ConnectionInfo)| {
            let own = Arc::new(Settings {
                servers: Servers::Standalone(info.clone()),
                ..Settings::clone(settings)
            });
            let key = marker_key(&settings.prefix);
            let member = QuorumMember {
                at,
                members: Arc::clone(&members),
                clocks: Arc::clone(&clocks),
            };
            let marker = Marker::of_member(key, settings.on_empty_store, settings.longest_ttl, member);
            let name = info.addr().to_string();
            let marker = marker.recorded_in(settings.record.of_server(&name));
            let node = Arc::new(Node::start(Arc::clone(&own), Finder::Fixed(info), marker, scripts::ALL));
            let topology = Arc::new(Topology::Single(Arc::clone(&node)));
            let subscriptions = Subscriptions::start(own, &topology);
            QuorumNode {
                name,
                node,
                subscriptions,
                _topology: topology,
            }
        };
        Self {
            all: servers.into_iter().enumerate().map(member).collect(),
            clocks,
            too_far: Mutex::default(),
            key_prefix: settings.prefix.clone(),
            timeout: node_timeout,
        }
    }

    /// The number of nodes that is a majority.
    pub fn majority(&self) -> usize {
        self.all.len() / 2 + 1
    }

    /// The current admissions of all nodes.
    pub fn admissions(&self) -> Arc<Vec<Admission>> {
        let of = |member: &QuorumNode| member.node.admission().ok().flatten();
        Arc::new(self.all.iter().map(of).collect())
    }

    /// Queries every node at once.
    pub fn query(self: &Arc<Self>, request: &Request) -> Round {
        self.query_some(request, |_| true)
    }

    /// Queries the selected nodes at once.
    pub fn query_some(self: &Arc<Self>, request: &Request, selected: impl Fn(usize) -> bool) -> Round {
        let pending: FuturesUnordered<_> = (0..self.all.len())
            .filter(|at| selected(*at))
            .map(|at| {
                let (nodes, request) = (Arc::clone(self), request.clone());
                async move { (at, nodes.query_one(at, &request).await) }.boxed()
            })
            .collect();
        let sent = Instant::now();
        Round {
            pending,
            sent,
            deadline: sent + self.timeout,
        }
    }

    async fn query_one(&self, at: usize, request: &Request) -> Reply {
        let node = &self.all[at].node;
        let known = match node.admission() {
            Err(_) => return Reply::Nothing,
            Ok(None) if !request.all => return Reply::Quarantined,
            Ok(admission) => admission,
        };
        let was_admitted = known.is_some();
        let admission = known.unwrap_or_default();
        let bound = request.bound.as_ref().and_then(|bound| bound.get(at));
        let admission = bound.map_or(admission, |bound| bound.clone().unwrap_or_default());
        let Request { base, lock, .. } = request;
        let key = format!("{base}l:{lock}").into_bytes();
        let beside = [marker_key(&self.key_prefix), format!("{base}names").into_bytes()];
        let mut args = vec![admission, format!("{base}c").into_bytes(), lock.as_bytes().to_vec()];
        args.extend(request.args.iter().cloned());
        let call = ScriptCall {
            beside: &[&beside[0], &beside[1]],
            ..ScriptCall::of(&key, &args)
        };
        let sent_at = Instant::now();
        let answer = node.call(request.script, &call, StepRequirements::Nothing).await;
        let read = answer.and_then(|answer| match answer {
            Ok(answer) => read(answer.value),
            Err(error) => Err(of_script(&error)),
        });
        match read {
            Ok((status, now, rest)) => {
                self.clocks.record(at, sent_at, now);
                if status != "untrusted" {
                    return Reply::Status(status, rest);
                }
                if was_admitted {
                    // Its marker changed: the admission known here is out of date.
                    node.suspect();
                }
                Reply::Nothing
            }
            Err(error) => self.not_answered(at, error),
        }
    }

    fn not_answered(&self, at: usize, error: BackendError) -> Reply {
        let QuorumNode { name, node, .. } = &self.all[at];
        tracing::debug!(node = %name, %error, "a node did not answer");
        if is_of_record(&error) {
            return Reply::Unreadable(error);
        }
        if matches!(error, BackendError::Unavailable { .. }) {
            node.suspect();
        }
        Reply::Nothing
    }

    /// Checks that a majority of nodes is admitted.
    ///
    /// # Errors
    /// The reason, if it is not; nothing was sent.
    pub fn check_majority_admitted(&self) -> Result<(), BackendError> {
        let is_admitted = |member: &&QuorumNode| member.node.admission().is_ok_and(|admission| admission.is_some());
        if self.all.iter().filter(is_admitted).count() >= self.majority() {
            return Ok(());
        }
        Err(self.no_majority(false))
    }

    /// Records whose votes counted and whose did not, and logs changes.
    pub fn log_too_far(&self, counted: &[(usize, u64)], too_far: &[(usize, u64)]) {
        let mut logged = self.too_far.lock();
        for (at, _) in counted {
            if logged.remove(at) {
                tracing::info!(node = %self.all[*at].name, "the node's token numbers count again");
            }
        }
        for (at, number) in too_far {
            if logged.insert(*at) {
                let node = &self.all[*at].name;
                tracing::warn!(%node, number, "the node's numbers are far ahead: correct its clock, then empty it");
            }
        }
    }

    /// The same as [`Self::no_majority`], when some votes did not count.
    pub fn no_majority_with(&self, too_far: &[(usize, u64)]) -> BackendError {
        let names: Vec<&str> = too_far.iter().map(|(at, _)| self.all[*at].name.as_str()).collect();
        match self.no_majority(true) {
            BackendError::NoQuorum { reason, sent } if !names.is_empty() => {
                let names = names.join(", ");
                let reason = format!("{reason}; the token numbers of {names} are more than a day ahead");
                BackendError::NoQuorum { reason, sent }
            }
            other => other,
        }
    }

    /// Why there was no majority: the state of each failed node, and whether only quarantines
    /// caused it. After a step was sent it may have had an effect, so the error is never
    /// `Quarantined`.
    pub fn no_majority(&self, sent: bool) -> BackendError {
        let health: Vec<Health> = self
            .all
            .iter()
            .map(|member| member.node.health().borrow().clone())
            .collect();
        match self.overall(&health) {
            Health::Quarantined { until, reason } if !sent => BackendError::Quarantined {
                left: until.saturating_duration_since(Instant::now()),
                reason,
            },
            Health::Unavailable { reason } | Health::Quarantined { reason, .. } => {
                BackendError::NoQuorum { reason, sent }
            }
            Health::Serving => BackendError::NoQuorum {
                reason: "too few nodes answered in time".into(),
                sent,
            },
        }
    }

    /// The store's health, from the health of its nodes.
    pub fn overall(&self, health: &[Health]) -> Health {
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

    /// The reasons why nodes are not serving.
    pub fn remarks(&self, health: &[Health]) -> String {
        let remark = |(member, health): (&QuorumNode, &Health)| match health {
            Health::Serving => None,
            Health::Quarantined { reason, .. } => Some(format!("{} is in quarantine: {reason}", member.name)),
            Health::Unavailable { reason } => Some(format!("{} is unavailable: {reason}", member.name)),
        };
        let remarks: Vec<String> = self.all.iter().zip(health).filter_map(remark).collect();
        remarks.join("; ")
    }
}

/// Differs from the key of a Redis backend's marker, because both may use one server with one
/// prefix.
fn marker_key(prefix: &str) -> Vec<u8> {
    format!("{prefix}:voter").into_bytes()
}

/// The status word of a script's reply, the node's time, and the rest.
fn read(value: Value) -> Result<(String, u64, Values), BackendError> {
    let mut values = Values::from(from_redis_value::<Vec<Value>>(value).map_err(broken)?);
    Ok((values.take()?, values.take()?, values))
}

/// The replies of one round, in the order of their arrival. When it is dropped, the requests
/// continue and their replies are ignored: a sent request is not cancelled, and a script that a
/// node does not know yet is still sent to it.
pub struct Round {
    pending: FuturesUnordered<BoxFuture<'static, (usize, Reply)>>,
    /// When the requests were sent.
    pub sent: Instant,
    deadline: Instant,
}

impl Round {
    /// A round whose replies arrive in this order.
    #[cfg(test)]
    pub fn of(replies: impl IntoIterator<Item = Reply>) -> Self {
        let replies = replies.into_iter().enumerate();
        let sent = Instant::now();
        Self {
            pending: replies.map(|reply| std::future::ready(reply).boxed()).collect(),
            sent,
            deadline: sent + Duration::from_secs(1),
        }
    }

    /// The next reply; `None` when all nodes have replied or the deadline has passed.
    pub async fn next(&mut self) -> Option<(usize, Reply)> {
        timeout_at(self.deadline, self.pending.next()).await.ok().flatten()
    }

    /// How many nodes may still reply.
    pub fn outstanding(&self) -> usize {
        if Instant::now() < self.deadline {
            self.pending.len()
        } else {
            0
        }
    }

    /// Waits at most `rest` for the remaining replies.
    pub fn shorten_deadline(&mut self, rest: Duration) {
        self.deadline = self.deadline.min(Instant::now() + rest);
    }

    /// Waits until a majority has replied with a status. False if it has not.
    pub async fn await_statuses(&mut self, majority: usize) -> bool {
        let mut answered = 0;
        while answered < majority {
            match self.next().await {
                Some((_, Reply::Status(..))) => answered += 1,
                Some(_) => {}
                None => return false,
            }
        }
        true
    }

    /// Passes the remaining replies to `each`, however late, in the background.
    pub fn detach(&mut self, mut each: impl FnMut((usize, Reply)) + Send + 'static) {
        if self.pending.is_empty() {
            return;
        }
        let mut rest = std::mem::take(&mut self.pending);
        // Each request is bounded by its connection's own timeout.
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
        self.detach(drop);
    }
}
