//! Whether a server remembers what was granted, and the quarantine if it may not.
//!
//! A marker in the store names the run of the process under which grants were made and the longest
//! TTL that anybody grants, whom every handshake adds to. Who finds another run waits so long, and at
//! least the longest TTL that its own namespaces grant, for the marker may be as old as the other
//! data. It waits on its own clock, from when it first saw a nonce in the marker; then the same nonce
//! turns the marker over. A replica of ours that starts in between reads the same nonce, and may make
//! all wait longer. Runs that lose nothing (durable writes, a promoted replica) are taken over at once.

use std::fmt;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, from_redis_value};
use tokio::time::Instant;

use super::cluster::slot;
use super::failure::{away, broken, of_script};
use super::handshake::Facts;
use super::script::{Ask, Script};
use super::settings::FirstStart;
use super::quorum_member::{MarkerQuery, MarkerVerdict, QuorumMember, MemberState};
use crate::backend::BackendError;

static MARKER: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("marker.lua")));

/// Whether grants are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Yes.
    Admitted,
    /// Not before then.
    Quarantined {
        /// When the longest TTL has passed.
        until: Instant,
    },
}

/// What this replica knows of one server's marker.
pub struct Marker {
    place: MarkerKey,
    /// Where the server is one of several that vote.
    voter: Option<QuorumMember>,
    first_start: FirstStart,
    longest_ttl: Duration,
    known: Mutex<Known>,
}

/// Where the marker lies.
#[derive(Debug)]
enum MarkerKey {
    /// Under this key.
    Fixed(Vec<u8>),
    /// Under this prefix, in the first slot of the node that stays there. It is chosen anew each time:
    /// where slots have come or gone, who is admitted writes it at its new place before a newcomer
    /// has to believe the one that it finds there.
    Slot(String),
}

#[derive(Debug, Default)]
struct Known {
    run_id: Option<String>,
    /// When the marker of an admitted server was last written, in milliseconds of the server's clock; 0 for never.
    written_ms: u64,
    /// The longest TTL that an admitted server's marker has shown.
    longest: Duration,
    quarantine: Option<Quarantine>,
    /// The run that is to be admitted by hand.
    by_hand: Option<String>,
    /// What names the present admission of a voter.
    epoch: Option<Vec<u8>>,
}

impl fmt::Debug for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Marker")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone)]
struct Quarantine {
    run_id: String,
    nonce: Vec<u8>,
    since: Instant,
    until: Instant,
}

impl Known {
    fn is_by_hand(&self, facts: &Facts) -> bool {
        self.by_hand.as_ref() == Some(&facts.run_id)
    }

    /// The nonce whose time is over.
    fn waited_for(&self, facts: &Facts) -> Vec<u8> {
        let waited = self.quarantine.as_ref();
        let waited = waited.filter(|one| one.run_id == facts.run_id && one.until <= Instant::now());
        waited.map(|one| one.nonce.clone()).unwrap_or_default()
    }
}

impl MarkerKey {
    async fn key(&self, connection: &mut MultiplexedConnection) -> Result<Option<Vec<u8>>, BackendError> {
        let prefix = match self {
            Self::Fixed(key) => return Ok(Some(key.clone())),
            Self::Slot(prefix) => prefix,
        };
        let mut ask = redis::cmd("CLUSTER");
        let nodes: String = ask.arg("NODES").query_async(connection).await.map_err(away)?;
        Ok(resting_slot(&nodes).map(|slot| key_in_slot(prefix, slot)))
    }

    /// What a failed call means here; where the slot has moved away just now, another one is chosen.
    fn lost(&self, error: &RedisError) -> BackendError {
        match (self, error.redirect_node()) {
            (Self::Slot(_), Some(_)) => away(MOVED),
            _ => of_script(error),
        }
    }
}

/// Said when the marker's slot has moved to another node: ask again.
pub const MOVED: &str = "the marker's slot has moved";

/// The first slot that a node serves and does not give away, from its own CLUSTER NODES.
fn resting_slot(nodes: &str) -> Option<u16> {
    let mine = nodes.lines().find(|line| line.contains("myself"))?;
    let ranges: Vec<&str> = mine.split_whitespace().skip(8).collect();
    let moving: Vec<u16> = ranges
        .iter()
        .filter_map(|range| range.strip_prefix('[')?.split('-').next()?.parse().ok())
        .collect();
    let bounds = |range: &&str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?)
    };
    let mut served = ranges.iter().filter_map(bounds).flatten();
    served.find(|slot| !moving.contains(slot))
}

/// A key that begins with `prefix` and belongs to this slot.
fn key_in_slot(prefix: &str, wanted: u16) -> Vec<u8> {
    let tag = (0u32..).find(|tag| slot(tag.to_string().as_bytes()) == wanted);
    format!("{prefix}:{{{}}}", tag.unwrap_or_default()).into_bytes()
}

impl Marker {
    /// A marker under this key. `longest_ttl` is the longest that anybody may have granted: no
    /// quarantine is shorter.
    pub fn new(key: Vec<u8>, first_start: FirstStart, longest_ttl: Duration) -> Self {
        Self::at(MarkerKey::Fixed(key), first_start, longest_ttl)
    }

    /// A marker of one node of a Cluster, in a slot that this node serves.
    pub fn in_cluster(prefix: &str, first_start: FirstStart, longest_ttl: Duration) -> Self {
        Self::at(MarkerKey::Slot(format!("{prefix}:admitted")), first_start, longest_ttl)
    }

    /// A marker of one of several servers that vote.
    pub fn of_voter(key: Vec<u8>, first_start: FirstStart, longest_ttl: Duration, voter: QuorumMember) -> Self {
        Self {
            voter: Some(voter),
            ..Self::new(key, first_start, longest_ttl)
        }
    }

    fn at(place: MarkerKey, first_start: FirstStart, longest_ttl: Duration) -> Self {
        Self {
            place,
            voter: None,
            first_start,
            longest_ttl,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the quarantine by hand: the server behind the next [`Self::see`] is trusted.
    pub fn admit(&self, run_id: &str) {
        let mut known = self.known();
        known.by_hand = Some(run_id.to_owned());
        known.quarantine = None;
    }

    /// What names the admission of a voter that was admitted when it was last seen.
    pub fn epoch(&self) -> Option<Vec<u8>> {
        self.known().epoch.clone()
    }

    /// Reads the marker over a connection whose server said `facts`, and writes it as they ask.
    ///
    /// # Errors
    /// Away when the server does not answer.
    pub async fn see(&self, connection: &mut MultiplexedConnection, facts: &Facts) -> Result<Trust, BackendError> {
        if let (Some(voter), MarkerKey::Fixed(key)) = (&self.voter, &self.place) {
            let judged = voter.see(connection, key, &self.voter_asks(facts)).await?;
            return Ok(self.judged(facts, judged));
        }
        let args = self.args(facts);
        let Some(key) = self.place.key(connection).await? else {
            // A node that serves no slot has nothing to remember yet.
            self.known().run_id = Some(facts.run_id.clone());
            return Ok(Trust::Admitted);
        };
        let ask = Ask {
            key: &key,
            beside: &[],
            args: &args,
            asking: false,
        };
        let answer = MARKER.call(connection, &ask).await;
        let answer = answer.map_err(|error| self.place.lost(&error))?;
        let (word, nonce, longest_ms, written_ms): (String, Vec<u8>, u64, u64) =
            from_redis_value(answer).map_err(broken)?;
        let longest = Duration::from_millis(longest_ms);
        match word.as_str() {
            "admitted" => {
                self.known().written_ms = written_ms;
                Ok(self.admitted(facts, longest))
            }
            "pending" => Ok(self.pending(facts, nonce, longest)),
            _ => Err(away("the marker cannot be read")),
        }
    }

    fn voter_asks(&self, facts: &Facts) -> MarkerQuery {
        let known = self.known();
        MarkerQuery {
            run_id: facts.run_id.clone(),
            by_hand: known.is_by_hand(facts),
            may_be_new: self.first_start == FirstStart::Admit && known.run_id.is_none(),
            waited_for: known.waited_for(facts),
            longest_ttl: self.longest(&known, facts),
        }
    }

    fn judged(&self, facts: &Facts, judged: MarkerVerdict) -> Trust {
        let longest = Duration::from_millis(judged.longest_ms);
        match judged.word {
            MemberState::Admitted => {
                self.known().epoch = Some(judged.name);
                self.admitted(facts, longest)
            }
            MemberState::Pending => {
                self.known().epoch = None;
                self.pending(facts, judged.name, longest)
            }
        }
    }

    fn admitted(&self, facts: &Facts, longest: Duration) -> Trust {
        let mut known = self.known();
        known.run_id = Some(facts.run_id.clone());
        known.longest = longest;
        (known.quarantine, known.by_hand) = (None, None);
        Trust::Admitted
    }

    fn pending(&self, facts: &Facts, nonce: Vec<u8>, longest: Duration) -> Trust {
        let mut known = self.known();
        let same = |one: &Quarantine| one.run_id == facts.run_id && one.nonce == nonce;
        let before = known.quarantine.take().filter(same);
        let since = before.map_or_else(Instant::now, |one| one.since);
        let until = since + longest;
        known.quarantine = Some(Quarantine {
            run_id: facts.run_id.clone(),
            nonce,
            since,
            until,
        });
        Trust::Quarantined { until }
    }

    /// The longest TTL that this replica knows of: its own, and before a server that may have lost its
    /// memory also that of others, which the marker may have forgotten.
    fn longest(&self, known: &Known, facts: &Facts) -> Duration {
        let admitted = known.run_id.as_ref() == Some(&facts.run_id);
        let others = if admitted { Duration::ZERO } else { known.longest };
        self.longest_ttl.max(others)
    }

    fn args(&self, facts: &Facts) -> Vec<Vec<u8>> {
        let mut nonce = [0; 16];
        // Without randomness the nonce is still new for this run of the server.
        let _ = getrandom::fill(&mut nonce);
        let known = self.known();
        let mine = known.run_id.as_ref() == Some(&facts.run_id) || known.is_by_hand(facts);
        let absent_is_new = self.first_start == FirstStart::Admit && known.run_id.is_none();
        let number = |n: u128| n.to_string().into_bytes();
        let flag = |set: bool| number(u128::from(set));
        vec![
            facts.run_id.clone().into_bytes(),
            facts.history[0].clone().into_bytes(),
            facts.history[1].clone().into_bytes(),
            number(facts.uptime.as_millis()),
            flag(facts.durable),
            flag(mine),
            flag(absent_is_new),
            nonce.to_vec(),
            known.waited_for(facts),
            number(self.longest(&known, facts).as_nanos().div_ceil(1_000_000)),
            number(known.written_ms.into()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_lies_in_a_slot_that_stays() {
        let nodes = "a 1:1@1 master - 0 0 2 connected 7-9\n\
                     b 1:2@2 myself,master - 0 0 1 connected 100-101 300 [100->-a]\n";
        assert_eq!(resting_slot(nodes), Some(101));
        assert_eq!(resting_slot("b 1:2@2 myself,master - 0 0 1 connected\n"), None);
    }

    #[test]
    fn a_key_can_be_made_for_any_slot() {
        for wanted in [0, 5461, 16_383] {
            assert_eq!(slot(&key_in_slot("p:admitted", wanted)), wanted);
        }
    }
}
