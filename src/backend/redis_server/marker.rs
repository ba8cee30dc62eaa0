//! Whether a server still has all grants, and the quarantine if it may not.
//!
//! A marker in the store contains the run id of the server process under which grants were made,
//! and the longest TTL of any replica; every handshake raises it to the replica's own longest TTL.
//! A replica that finds another run id waits for that time, and at least for the longest TTL of its
//! own namespaces, because the marker may be as old as the other data. It measures the wait on its
//! own clock, from when it first read the nonce in the marker; then it rewrites the marker with the
//! same nonce. Another replica that starts in between reads the same nonce, and may extend the wait
//! for all. A new run that certainly lost nothing (durable writes, a promoted replica) is admitted
//! at once.
//!
//! Each writing of the marker is counted. A replica that finds fewer than it has seen, or another run id than that under
//! which it was admitted, knows that a server which did not restart has older data, or another server's: nothing is
//! granted before that replica, or any other one, has waited. One that was promoted may lack the last seconds.
//!
//! A server without a marker is new, or has lost its data. [`OnEmptyStore`] decides, unless a replica knows of a loss: it
//! has granted leases on the server since it started, or its [`StoreRecord`] says that it did before. The replica then
//! writes the loss into the marker, where every other replica finds it.

use std::fmt;
use std::io::ErrorKind;
use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::from_redis_value;
use tokio::time::Instant;

use super::failure::{broken, unavailable};
use super::handshake::ServerInfo;
use super::marker_key::MarkerKey;
pub use super::quarantine_cause::QuarantineCause;
use super::script::{Script, ScriptCall};
use super::settings::OnEmptyStore;
use super::store_record::StoreRecord;
use crate::backend::BackendError;

static MARKER: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("marker.lua")));

/// Whether the server may grant leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Yes.
    Admitted,
    /// Not before `until`.
    Quarantined {
        /// When the longest TTL has passed.
        until: Instant,
        /// Why.
        cause: QuarantineCause,
    },
}

/// What it means that a server has no marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingMarker {
    /// It is new, or has lost its data.
    Unknown,
    /// It is new, unless another server knows better.
    New,
    /// It has lost its data: this server has granted leases in it.
    Lost,
}

/// A replica's knowledge of one server's marker.
pub struct Marker {
    key: MarkerKey,
    /// Present if the server is a node of a quorum.
    member: Option<Box<dyn Membership>>,
    on_empty_store: OnEmptyStore,
    record: StoreRecord,
    longest_ttl: Duration,
    /// The id of this replica in the marker.
    id: [u8; 16],
    known: Mutex<Known>,
}

/// How the marker of a node of a quorum is read.
#[async_trait]
pub trait Membership: Send + Sync + 'static {
    /// Reads the marker and updates it.
    ///
    /// # Errors
    /// Unavailable if the server does not reply, or if it is unknown yet whether it counts.
    async fn check(
        &self,
        connection: &mut MultiplexedConnection,
        key: &[u8],
        query: &MarkerQuery,
    ) -> Result<MarkerVerdict, BackendError>;
}

/// A time for a marker, in whole milliseconds: rounded up, because no lease may outlive it.
pub fn whole_ms(time: Duration) -> u128 {
    time.as_nanos().div_ceil(1_000_000)
}

/// Random bytes; zeros if there are none: a nonce of them is still new for a run of the server.
fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    let _ = getrandom::fill(&mut bytes);
    bytes
}

/// The query to the marker of a node.
pub struct MarkerQuery {
    /// The current run of the server.
    pub run_id: String,
    /// Whether to admit it regardless of the marker.
    pub by_hand: bool,
    /// What it means if it has no marker.
    pub missing: MissingMarker,
    /// The nonce whose quarantine has passed, or empty.
    pub waited_for: Vec<u8>,
    /// The minimum quarantine if it may have lost its data.
    pub longest_ttl: Duration,
}

/// The state of the marker of a node.
pub struct MarkerVerdict {
    /// Whether it is admitted.
    pub state: MemberState,
    /// The id of the admission or of the quarantine.
    pub name: Vec<u8>,
    /// The longest TTL of any replica, in milliseconds.
    pub longest_ms: u64,
}

/// Whether a server counts in the quorum.
pub enum MemberState {
    /// It is admitted.
    Admitted,
    /// It may have lost its data.
    Pending(QuarantineCause),
}

#[derive(Debug, Default)]
struct Known {
    run_id: Option<String>,
    /// Whether this server granted leases in the store before it started; absent until the record was read.
    recorded: Option<bool>,
    /// Whether the log says that the record cannot be written.
    is_unrecorded: bool,
    /// When the marker of an admitted server was last written, in milliseconds of the server's
    /// clock; 0 for never.
    written_ms: u64,
    /// How often the marker was written then, and its key.
    writes: (u64, Vec<u8>),
    /// The longest TTL in the marker of an admitted server.
    longest: Duration,
    quarantine: Option<Quarantine>,
    /// The run that an operator admits.
    by_hand: Option<String>,
    /// The id of the current admission of a quorum node.
    epoch: Option<Vec<u8>>,
}

impl fmt::Debug for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Marker").field("key", &self.key).finish_non_exhaustive()
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
    fn is_by_hand(&self, server_info: &ServerInfo) -> bool {
        self.by_hand.as_ref() == Some(&server_info.run_id)
    }

    /// The nonce whose quarantine has passed.
    fn waited_for(&self, server_info: &ServerInfo) -> Vec<u8> {
        let waited = self.quarantine.as_ref();
        let waited = waited.filter(|one| one.run_id == server_info.run_id && one.until <= Instant::now());
        waited.map(|one| one.nonce.clone()).unwrap_or_default()
    }
}

impl Marker {
    /// A marker at this key. `longest_ttl` is the longest TTL that any replica may have granted: no
    /// quarantine is shorter.
    pub fn new(key: Vec<u8>, on_empty_store: OnEmptyStore, longest_ttl: Duration) -> Self {
        Self::at(MarkerKey::Fixed(key), on_empty_store, longest_ttl)
    }

    /// A marker of one node of a Cluster, in a slot that this node serves.
    pub fn in_cluster(prefix: &str, on_empty_store: OnEmptyStore, longest_ttl: Duration) -> Self {
        Self::at(
            MarkerKey::Slot(format!("{prefix}:admitted")),
            on_empty_store,
            longest_ttl,
        )
    }

    /// A marker of a node of a quorum.
    pub fn of_member(
        key: Vec<u8>,
        on_empty_store: OnEmptyStore,
        longest_ttl: Duration,
        member: impl Membership,
    ) -> Self {
        Self {
            member: Some(Box::new(member)),
            ..Self::new(key, on_empty_store, longest_ttl)
        }
    }

    fn at(key: MarkerKey, on_empty_store: OnEmptyStore, longest_ttl: Duration) -> Self {
        Self {
            id: random(),
            key,
            member: None,
            on_empty_store,
            record: StoreRecord::default(),
            longest_ttl,
            known: Mutex::default(),
        }
    }

    /// With the record of whether this server has granted leases in the store.
    #[must_use]
    pub fn recorded_in(self, record: StoreRecord) -> Self {
        Self { record, ..self }
    }

    /// Ends the quarantine on an operator's request: the next [`Self::check`] admits this run.
    pub fn admit(&self, run_id: &str) {
        let mut known = self.known.lock();
        known.by_hand = Some(run_id.to_owned());
        known.quarantine = None;
    }

    /// The id of the admission of a quorum node, if it was admitted when its marker was last read.
    pub fn epoch(&self) -> Option<Vec<u8>> {
        self.known.lock().epoch.clone()
    }

    /// Reads the marker over a connection whose server reported `server_info`, and updates it.
    ///
    /// # Errors
    /// Unavailable if the server does not reply.
    pub async fn check(
        &self,
        connection: &mut MultiplexedConnection,
        server_info: &ServerInfo,
    ) -> Result<Trust, BackendError> {
        self.read_record().await;
        if let (Some(member), MarkerKey::Fixed(key)) = (&self.member, &self.key) {
            let verdict = member.check(connection, key, &self.member_query(server_info)).await?;
            let trust = self.apply_verdict(server_info, verdict);
            return Ok(self.recorded(trust).await);
        }
        let Some(key) = self.key.key(connection).await? else {
            // A node that serves no slot has no grants yet.
            self.known.lock().run_id = Some(server_info.run_id.clone());
            return Ok(Trust::Admitted);
        };
        let args = self.args(server_info, &key);
        let answer = MARKER.call(connection, &ScriptCall::of(&key, &args)).await;
        let answer = answer.map_err(|error| self.key.call_error(&error))?;
        let (state, nonce, longest_ms, written_ms, writes, cause): (String, Vec<u8>, u64, u64, u64, String) =
            from_redis_value(answer).map_err(broken)?;
        let longest = Duration::from_millis(longest_ms);
        match state.as_str() {
            "admitted" => {
                {
                    let mut known = self.known.lock();
                    (known.written_ms, known.writes) = (written_ms, (writes, key));
                }
                let trust = self.admitted(server_info, longest);
                Ok(self.recorded(trust).await)
            }
            "pending" => {
                let cause = QuarantineCause::of_word(&cause);
                Ok(self.pending(server_info, (nonce, cause), longest))
            }
            _ => Err(unavailable("the marker cannot be read")),
        }
    }

    /// A record that cannot be read counts as one: a server must not take a store for new by a guess.
    async fn read_record(&self) {
        if self.known.lock().recorded.is_some() {
            return;
        }
        let recorded = self.record.exists().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the data directory cannot be read: an empty store counts as one that lost its data");
            true
        });
        self.known.lock().recorded = Some(recorded);
    }

    /// Records an admission before the first grant, so that a later loss is known.
    async fn recorded(&self, trust: Trust) -> Trust {
        if trust != Trust::Admitted || self.known.lock().recorded == Some(true) {
            return trust;
        }
        let Err(error) = self.record.write().await else {
            self.known.lock().recorded = Some(true);
            return trust;
        };
        // A disk that hangs keeps a thread for each try. After other errors it is tried again at the next check.
        if error.kind() == ErrorKind::TimedOut {
            self.known.lock().recorded = Some(true);
        }
        let was_told = std::mem::replace(&mut self.known.lock().is_unrecorded, true);
        if !was_told && self.on_empty_store == OnEmptyStore::Admit {
            tracing::warn!(
                %error,
                "the data directory cannot be written: after a restart of this server, on_empty_store = \"admit\" takes a \
                 store that has lost its data for a new one"
            );
        }
        trust
    }

    fn member_query(&self, server_info: &ServerInfo) -> MarkerQuery {
        let known = self.known.lock();
        MarkerQuery {
            run_id: server_info.run_id.clone(),
            by_hand: known.is_by_hand(server_info),
            missing: self.missing(&known),
            waited_for: known.waited_for(server_info),
            longest_ttl: self.longest(&known, server_info),
        }
    }

    fn apply_verdict(&self, server_info: &ServerInfo, verdict: MarkerVerdict) -> Trust {
        let longest = Duration::from_millis(verdict.longest_ms);
        match verdict.state {
            MemberState::Admitted => {
                self.known.lock().epoch = Some(verdict.name);
                self.admitted(server_info, longest)
            }
            MemberState::Pending(cause) => {
                self.known.lock().epoch = None;
                self.pending(server_info, (verdict.name, cause), longest)
            }
        }
    }

    fn admitted(&self, server_info: &ServerInfo, longest: Duration) -> Trust {
        let mut known = self.known.lock();
        known.run_id = Some(server_info.run_id.clone());
        known.longest = longest;
        (known.quarantine, known.by_hand) = (None, None);
        Trust::Admitted
    }

    fn pending(
        &self,
        server_info: &ServerInfo,
        (nonce, cause): (Vec<u8>, QuarantineCause),
        longest: Duration,
    ) -> Trust {
        let mut known = self.known.lock();
        let same = |one: &Quarantine| one.run_id == server_info.run_id && one.nonce == nonce;
        let before = known.quarantine.take().filter(same);
        let since = before.map_or_else(Instant::now, |one| one.since);
        let until = since + longest;
        known.quarantine = Some(Quarantine {
            run_id: server_info.run_id.clone(),
            nonce,
            since,
            until,
        });
        Trust::Quarantined { until, cause }
    }

    fn missing(&self, known: &Known) -> MissingMarker {
        match self.on_empty_store {
            _ if known.run_id.is_some() || known.recorded == Some(true) => MissingMarker::Lost,
            OnEmptyStore::Admit => MissingMarker::New,
            OnEmptyStore::Quarantine => MissingMarker::Unknown,
        }
    }

    /// The longest TTL that this replica knows of: its own and, if the server may have lost its
    /// data, also that of others, which the marker may have lost.
    fn longest(&self, known: &Known, server_info: &ServerInfo) -> Duration {
        let admitted = known.run_id.as_ref() == Some(&server_info.run_id);
        let others = if admitted { Duration::ZERO } else { known.longest };
        self.longest_ttl.max(others)
    }

    fn args(&self, server_info: &ServerInfo, key: &[u8]) -> Vec<Vec<u8>> {
        let known = self.known.lock();
        let mine = match known.run_id.as_ref() == Some(&server_info.run_id) {
            _ if known.is_by_hand(server_info) => 2,
            mine => u128::from(mine),
        };
        let writes = Some(known.writes.0).filter(|_| known.writes.1 == key);
        let missing = match self.missing(&known) {
            MissingMarker::Unknown => 0,
            MissingMarker::New => 1,
            MissingMarker::Lost => 2,
        };
        let number = |n: u128| n.to_string().into_bytes();
        vec![
            server_info.run_id.clone().into_bytes(),
            server_info.history[0].clone().into_bytes(),
            server_info.history[1].clone().into_bytes(),
            number(server_info.uptime.as_millis()),
            number(server_info.durable.into()),
            number(mine),
            number(missing),
            random().to_vec(),
            known.waited_for(server_info),
            number(whole_ms(self.longest(&known, server_info))),
            number(known.written_ms.into()),
            number(writes.unwrap_or_default().into()),
            self.id.to_vec(),
        ]
    }
}
