//! One of several servers that vote: its marker, and what makes it a new one.
//!
//! It is admitted anew after every restart and whenever its marker is gone, under another name each
//! time. An empty server is a new one only in company: where the first start is admitted, when all of
//! them have been reached and none has voted yet. A single empty one has forgotten.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::from_redis_value;
use tokio::time::Instant;

use super::failure::{away, broken, of_script};
use super::script::{Ask, Script};
use crate::backend::BackendError;

static VOTER: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("voter.lua")));

/// How long an empty server waits for the others before it counts as one that forgot.
const COMPANY: Duration = Duration::from_secs(10);

/// A number that none of those has reached that the servers have handed out, in microseconds.
pub type Floor = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Told when a server was asked, and what time it said it was, in microseconds.
pub type Told = Arc<dyn Fn(Instant, u64) + Send + Sync>;

/// What is known of one of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownMember {
    Not,
    /// It has no marker.
    Empty,
    /// It is admitted, and has not voted.
    Unused,
    /// It has voted, or may have forgotten that.
    Used,
}

/// All the servers that vote together, as one replica has met them.
#[derive(Debug)]
pub struct QuorumMembers {
    met: Mutex<Vec<KnownMember>>,
    /// By server: the run that answers there, and since when.
    runs: Mutex<Vec<Option<(String, Instant)>>>,
    since: Instant,
}

/// Whether an empty server is new.
enum Verdict {
    New,
    Forgot,
    /// Not all have been met yet.
    Unknown,
}

impl QuorumMembers {
    /// So many servers, none of which was met.
    pub fn new(servers: usize) -> Arc<Self> {
        Arc::new(Self {
            met: Mutex::new(vec![KnownMember::Not; servers]),
            runs: Mutex::new(vec![None; servers]),
            since: Instant::now(),
        })
    }

    /// Notes which run answers at an address; whether another address has led to it for longer. A server
    /// that two addresses lead to must not vote twice.
    fn is_twice(&self, at: usize, run_id: &str) -> bool {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
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

    fn meet(&self, at: usize, as_what: KnownMember) {
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(met) = met.get_mut(at) {
            *met = as_what;
        }
    }

    fn verdict(&self) -> Verdict {
        let met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        if met.contains(&KnownMember::Used) {
            return Verdict::Forgot;
        }
        match (met.contains(&KnownMember::Not), self.since.elapsed() < COMPANY) {
            (false, _) => Verdict::New,
            (true, true) => Verdict::Unknown,
            (true, false) => Verdict::Forgot,
        }
    }
}

/// One of them.
pub struct QuorumMember {
    /// Which one.
    pub at: usize,
    /// All of them.
    pub company: Arc<QuorumMembers>,
    /// Where its numbers go on when it is admitted.
    pub floor: Floor,
    /// Where they go on at the least when somebody else has admitted it, who may know less.
    pub past_all: Floor,
    /// What hears its time.
    pub time: Told,
}

/// What is asked of its marker.
pub struct MarkerQuery {
    /// This run of the server.
    pub run_id: String,
    /// It is to be admitted whatever the marker says.
    pub by_hand: bool,
    /// Without a marker it may be new.
    pub may_be_new: bool,
    /// The nonce whose time is over, or nothing.
    pub waited_for: Vec<u8>,
    /// For how long at least it is not trusted when it may have forgotten.
    pub longest_ttl: Duration,
}

/// What its marker says.
pub struct MarkerVerdict {
    /// Whether it votes.
    pub word: MemberState,
    /// Names the admission, or the quarantine.
    pub name: Vec<u8>,
    /// The longest TTL that anybody grants.
    pub longest_ms: u64,
}

/// Whether a server votes.
pub enum MemberState {
    /// It does.
    Admitted,
    /// It may have forgotten.
    Pending,
}

impl QuorumMember {
    /// Reads the marker, and writes it as it is to be.
    ///
    /// # Errors
    /// Away when the server does not answer, or is empty and the others have not been reached yet.
    pub async fn see(
        &self,
        connection: &mut MultiplexedConnection,
        key: &[u8],
        asks: &MarkerQuery,
    ) -> Result<MarkerVerdict, BackendError> {
        if self.company.is_twice(self.at, &asks.run_id) {
            return Err(away("another of the nodes is the same server"));
        }
        let absent = if asks.may_be_new { "2" } else { "0" };
        let mut answer = self.ask(connection, key, asks, absent).await?;
        if answer.0 == "missing" {
            self.company.meet(self.at, KnownMember::Empty);
            let absent = match self.company.verdict() {
                Verdict::New => "1",
                Verdict::Forgot => "0",
                Verdict::Unknown => {
                    return Err(away("it is empty, and whether all are is not known yet"));
                }
            };
            answer = self.ask(connection, key, asks, absent).await?;
        }
        let (word, name, longest_ms, used) = answer;
        let unused = word == "admitted" && used.is_empty();
        self.company.meet(self.at, if unused { KnownMember::Unused } else { KnownMember::Used });
        let word = match word.as_str() {
            "admitted" => MemberState::Admitted,
            "pending" => MemberState::Pending,
            _ => return Err(away("the marker cannot be read")),
        };
        Ok(MarkerVerdict { word, name, longest_ms })
    }

    async fn ask(
        &self,
        connection: &mut MultiplexedConnection,
        key: &[u8],
        asks: &MarkerQuery,
        absent: &str,
    ) -> Result<(String, Vec<u8>, u64, String), BackendError> {
        let mut nonce = [0; 16];
        // Without randomness two admissions of one run could not be told apart.
        getrandom::fill(&mut nonce).map_err(away)?;
        let args = [
            asks.run_id.clone().into_bytes(),
            u8::from(asks.by_hand).to_string().into_bytes(),
            absent.as_bytes().to_vec(),
            nonce.to_vec(),
            asks.waited_for.clone(),
            asks.longest_ttl.as_millis().to_string().into_bytes(),
            (self.floor)().to_string().into_bytes(),
            (self.past_all)().to_string().into_bytes(),
        ];
        let ask = Ask {
            key,
            beside: &[],
            args: &args,
            asking: false,
        };
        let asked = Instant::now();
        let answer = VOTER.call(connection, &ask).await.map_err(|error| of_script(&error))?;
        let (word, name, longest_ms, used, now) = from_redis_value(answer).map_err(broken)?;
        (self.time)(asked, now);
        Ok((word, name, longest_ms, used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_empty_server_is_new_only_among_others_that_have_not_voted() {
        let company = QuorumMembers::new(3);
        company.meet(0, KnownMember::Empty);
        assert!(matches!(company.verdict(), Verdict::Unknown));
        company.meet(1, KnownMember::Empty);
        company.meet(2, KnownMember::Unused);
        assert!(matches!(company.verdict(), Verdict::New));
        company.meet(2, KnownMember::Used);
        assert!(matches!(company.verdict(), Verdict::Forgot));
        company.meet(2, KnownMember::Not);
        tokio::time::sleep(COMPANY).await;
        assert!(matches!(company.verdict(), Verdict::Forgot));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_two_addresses_lead_to_is_one() {
        let company = QuorumMembers::new(3);
        assert!(!company.is_twice(1, "a"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The later one is out, however often both are seen.
        assert!(company.is_twice(0, "a") && !company.is_twice(1, "a") && company.is_twice(0, "a"));
        assert!(!company.is_twice(2, "b"));
        // The addresses changed places.
        assert!(!company.is_twice(1, "c") && !company.is_twice(0, "a"));
    }
}
