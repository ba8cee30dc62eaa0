//! One node of a quorum: its marker, and when it counts as new.
//!
//! A node is admitted anew after every restart and whenever its marker is missing, with a new
//! admission id each time. An empty node counts as new only if `on_empty_store` admits it, every node
//! was reached, none has voted, and no server has been granted votes of it. Otherwise an empty node has lost its
//! data.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::from_redis_value;
use tokio::time::Instant;

use super::clock::Clocks;
use crate::backend::BackendError;
use crate::backend::redis_server::failure::{broken, of_script, unavailable};
use crate::backend::redis_server::marker::{
    MarkerQuery, MarkerVerdict, MemberState, Membership, MissingMarker, QuarantineCause, whole_ms,
};
use crate::backend::redis_server::script::{Script, ScriptCall};

static MEMBER: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("quorum_member.lua")));

/// How long an empty server waits for the others before it counts as one that may have lost its data.
const MEMBERS_WAIT: Duration = Duration::from_secs(10);

/// A replica's knowledge of one of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownMember {
    Unreached,
    /// It has no marker.
    Empty,
    /// It is admitted, and has not voted yet.
    Unused,
    /// It has voted, or may have forgotten a vote.
    Used,
}

/// All servers of the quorum, as one replica knows them.
#[derive(Debug)]
pub struct QuorumMembers {
    states: Mutex<Vec<KnownMember>>,
    /// By server: the run behind its address, and since when.
    runs: Mutex<Vec<Option<(String, Instant)>>>,
    since: Instant,
}

/// Whether an empty server is new.
enum Verdict {
    New,
    Forgot,
    /// Not all servers have been reached yet.
    Unknown,
    /// Not all servers have been reached for [`MEMBERS_WAIT`].
    TooLate,
}

impl QuorumMembers {
    /// A quorum of this many servers, none of which was reached yet.
    pub fn new(servers: usize) -> Arc<Self> {
        Arc::new(Self {
            states: Mutex::new(vec![KnownMember::Unreached; servers]),
            runs: Mutex::new(vec![None; servers]),
            since: Instant::now(),
        })
    }

    /// How many servers the quorum has.
    fn count(&self) -> usize {
        self.states.lock().len()
    }

    /// Records which run answers at an address. Returns whether another address has led to the same
    /// run for longer: a server behind two addresses must not count twice.
    fn is_duplicate(&self, at: usize, run_id: &str) -> bool {
        let mut runs = self.runs.lock();
        let Some(mine) = runs.get_mut(at) else {
            return false;
        };
        if mine.as_ref().is_none_or(|(run, _)| run != run_id) {
            *mine = Some((run_id.to_owned(), Instant::now()));
        }
        let same = |(other, run): (usize, &Option<(String, Instant)>)| {
            let run = run.as_ref().filter(|(run, _)| run == run_id);
            run.map(|(_, since)| (*since, other))
        };
        let first = runs.iter().enumerate().filter_map(same).min();
        first.is_some_and(|(_, first)| first != at)
    }

    fn record(&self, at: usize, state: KnownMember) {
        let mut states = self.states.lock();
        if let Some(known) = states.get_mut(at) {
            *known = state;
        }
    }

    fn verdict(&self) -> Verdict {
        let states = self.states.lock();
        if states.contains(&KnownMember::Used) {
            return Verdict::Forgot;
        }
        match (
            states.contains(&KnownMember::Unreached),
            self.since.elapsed() < MEMBERS_WAIT,
        ) {
            (false, _) => Verdict::New,
            (true, true) => Verdict::Unknown,
            (true, false) => Verdict::TooLate,
        }
    }
}

/// One server of the quorum.
pub struct QuorumMember {
    /// Its index.
    pub at: usize,
    /// All servers of the quorum.
    pub members: Arc<QuorumMembers>,
    /// The clocks of all servers, which give the floors of tokens.
    pub clocks: Arc<Clocks>,
}

#[async_trait]
impl Membership for QuorumMember {
    /// A server is unavailable while it is empty and the others have not been reached yet.
    async fn check(
        &self,
        connection: &mut MultiplexedConnection,
        key: &[u8],
        query: &MarkerQuery,
    ) -> Result<MarkerVerdict, BackendError> {
        if self.members.is_duplicate(self.at, &query.run_id) {
            return Err(unavailable("another of the nodes is the same server"));
        }
        let absent = match query.missing {
            MissingMarker::Unknown => "0",
            MissingMarker::New => "2",
            MissingMarker::Lost => "3",
        };
        let mut answer = self.query_marker(connection, key, query, absent).await?;
        if answer.0 == "missing" {
            self.members.record(self.at, KnownMember::Empty);
            let absent = match self.members.verdict() {
                Verdict::New => "1",
                Verdict::Forgot => "3",
                Verdict::TooLate => "0",
                Verdict::Unknown => {
                    return Err(unavailable(
                        "the server is empty, and not all nodes have been reached yet",
                    ));
                }
            };
            answer = self.query_marker(connection, key, query, absent).await?;
        }
        let (state, name, longest_ms, detail) = answer;
        let (state, known) = match state.as_str() {
            "admitted" if detail.is_empty() => (MemberState::Admitted, KnownMember::Unused),
            "admitted" => (MemberState::Admitted, KnownMember::Used),
            "pending" => match QuarantineCause::of_word(&detail) {
                cause @ QuarantineCause::Empty => (MemberState::Pending(cause), KnownMember::Empty),
                cause => (MemberState::Pending(cause), KnownMember::Used),
            },
            "other" => {
                let own = self.members.count();
                let problem = format!(
                    "it was opened as one of {detail} nodes, and this server has {own}: see docs/redlock.md, \"Other nodes\""
                );
                return Err(unavailable(problem));
            }
            _ => return Err(unavailable("the marker cannot be read")),
        };
        self.members.record(self.at, known);
        Ok(MarkerVerdict {
            state,
            name,
            longest_ms,
        })
    }
}

impl QuorumMember {
    async fn query_marker(
        &self,
        connection: &mut MultiplexedConnection,
        key: &[u8],
        query: &MarkerQuery,
        absent: &str,
    ) -> Result<(String, Vec<u8>, u64, String), BackendError> {
        let mut nonce = [0; 16];
        // Without random bytes, two admissions of one run could get the same id.
        getrandom::fill(&mut nonce).map_err(unavailable)?;
        let args = [
            query.run_id.clone().into_bytes(),
            u8::from(query.by_hand).to_string().into_bytes(),
            absent.as_bytes().to_vec(),
            nonce.to_vec(),
            query.waited_for.clone(),
            whole_ms(query.longest_ttl).to_string().into_bytes(),
            self.clocks.floor().to_string().into_bytes(),
            self.clocks.past_all().to_string().into_bytes(),
            self.members.count().to_string().into_bytes(),
        ];
        let sent_at = Instant::now();
        let answer = MEMBER
            .call(connection, &ScriptCall::of(key, &args))
            .await
            .map_err(|error| of_script(&error))?;
        let (state, name, longest_ms, used, now) = from_redis_value(answer).map_err(broken)?;
        self.clocks.record(self.at, sent_at, now);
        Ok((state, name, longest_ms, used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_empty_server_is_new_only_if_all_were_reached_and_none_has_voted() {
        let members = QuorumMembers::new(3);
        members.record(0, KnownMember::Empty);
        assert!(matches!(members.verdict(), Verdict::Unknown));
        members.record(1, KnownMember::Empty);
        members.record(2, KnownMember::Unused);
        assert!(matches!(members.verdict(), Verdict::New));
        members.record(2, KnownMember::Used);
        assert!(matches!(members.verdict(), Verdict::Forgot));
        members.record(2, KnownMember::Unreached);
        tokio::time::sleep(MEMBERS_WAIT).await;
        assert!(matches!(members.verdict(), Verdict::TooLate));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_behind_two_addresses_counts_once() {
        let members = QuorumMembers::new(3);
        assert!(!members.is_duplicate(1, "a"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The address that was recorded later does not count, however often both are recorded.
        assert!(members.is_duplicate(0, "a") && !members.is_duplicate(1, "a") && members.is_duplicate(0, "a"));
        assert!(!members.is_duplicate(2, "b"));
        // The addresses have swapped their servers.
        assert!(!members.is_duplicate(1, "c") && !members.is_duplicate(0, "a"));
    }
}
