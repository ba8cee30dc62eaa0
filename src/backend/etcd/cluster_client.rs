//! The way to the cluster: one connection per endpoint, and a failover of our own that stays where
//! it is until that member fails. (The client's own balancer keeps sending calls to a dead member.)

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use etcd_client::{Client, ConnectOptions, Error, GetOptions, GetResponse, KeyValue, ResponseHeader, Txn, TxnResponse};
use tokio::sync::{OnceCell, watch};
use tokio::time::{Instant, timeout};

use super::member_credentials::MemberCredentials;
use super::settings::Settings;
use crate::backend::BackendError;

/// What went wrong between here and the cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A lease that the request named is dead; nothing was written.
    #[error("the lease is dead")]
    LeaseGone,
    /// The cluster refused the request; nothing was written.
    #[error("{0}")]
    Refused(String),
    /// Its space is used up. Whether it took effect is unknown: who goes past the limit is refused
    /// after the write.
    #[error("{0}")]
    Full(String),
    /// No leader, or no quorum; whether it took effect is unknown.
    #[error("{0}")]
    NoQuorum(String),
    /// No answer; whether it took effect is unknown.
    #[error("{0}")]
    Unavailable(String),
    /// It was not sent, nor anything before it that had an effect.
    #[error("{0}")]
    NotSent(String),
}

impl Failure {
    /// The same, where nothing had been sent yet.
    pub fn unsent(self) -> Self {
        Self::NotSent(self.to_string())
    }
}

impl From<Failure> for BackendError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NoQuorum(reason) => Self::NoQuorum { reason, sent: true },
            Failure::LeaseGone => Self::Unavailable {
                reason: "etcd: a lease ended".into(),
            },
            Failure::NotSent(reason) => Self::NotSent { reason },
            Failure::Refused(reason) | Failure::Full(reason) | Failure::Unavailable(reason) => Self::Unavailable { reason },
        }
    }
}

/// How often a read is asked of another member.
const READ_TRIES: usize = 3;
/// How many keys a page has of a read that may be large: with the largest metadata some 2 MB.
const PAGE: i64 = 500;
/// How large an answer of etcd may be, in bytes. What may be large is read in pages; a page of holders with many holds
/// each, or the answer to a full batch, is larger than the 4 MiB that a client takes by default.
pub const ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// See the module.
pub struct ClusterClient {
    members: Vec<Member>,
    current: AtomicUsize,
    /// The member whose connection for sessions is used.
    current_of_sessions: AtomicUsize,
    /// How a client is made, but for what proves this server.
    options: ConnectOptions,
    /// What proves it.
    pub(super) proving: MemberCredentials,
    timeout: Duration,
    /// The highest revision of any answer: one below tells of a restored snapshot.
    revision: AtomicI64,
    /// How often one below was met.
    restores: watch::Sender<u64>,
}

/// A member, and the client that calls go over.
pub(super) struct Member {
    pub(super) url: String,
    /// Made with the first call; there is another in its place where one was made since with another proof.
    pub(super) client: ArcSwap<OnceCell<Client>>,
    /// The same for the keep-alives of sessions alone: no call that is large, and no number of them, delays those.
    pub(super) of_sessions: ArcSwap<OnceCell<Client>>,
}

impl fmt::Debug for ClusterClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<_> = self.members.iter().map(|member| &member.url).collect();
        f.debug_struct("Link").field("endpoints", &urls).finish_non_exhaustive()
    }
}

impl ClusterClient {
    /// Connects at the first call.
    pub fn new(settings: &Settings) -> Self {
        let members = settings.endpoints.iter().map(|url| Member {
            url: url.clone(),
            client: ArcSwap::default(),
            of_sessions: ArcSwap::default(),
        });
        Self {
            members: members.collect(),
            current: AtomicUsize::new(0),
            current_of_sessions: AtomicUsize::new(0),
            options: settings.options(),
            proving: MemberCredentials::by(settings.proof.clone()),
            timeout: settings.timeout,
            revision: AtomicI64::new(0),
            restores: watch::Sender::new(0),
        }
    }

    /// Asks once. After a failure that another member may not have, the next call goes to that one.
    pub async fn call<T, F>(&self, ask: impl FnOnce(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let at = self.current.load(Ordering::Acquire);
        let asked = timeout(self.timeout, async { ask(self.client(at).await?).await });
        let answer = match asked.await {
            Ok(answer) => answer.map_err(|error| failure(&error)),
            Err(_) => Err(Failure::Unavailable(format!("etcd at {} did not answer", self.url(at)))),
        };
        if matches!(answer, Err(Failure::Unavailable(_) | Failure::NoQuorum(_))) {
            self.turn_away_from(at);
        }
        if answer.is_err() {
            // Another proof may do, if there is one that was not used yet.
            self.proving.hurry();
        }
        answer
    }

    /// A connection for streams, which end with their member.
    pub async fn streaming(&self) -> Result<Client, Failure> {
        self.call(|client| async { Ok(client) }).await
    }

    /// The connection that carries nothing but the keep-alives of sessions.
    pub async fn for_sessions(&self) -> Result<Client, Failure> {
        let at = self.current_of_sessions.load(Ordering::Acquire) % self.members.len();
        let member = &self.members[at];
        let place = member.of_sessions.load_full();
        let connected = timeout(self.timeout, place.get_or_try_init(|| self.connect(member))).await;
        let connected = connected.map_err(|_| Failure::Unavailable(format!("etcd at {} did not answer", member.url)))?;
        connected.cloned().map_err(|error| failure(&error))
    }

    /// The member of the connection for sessions failed: the next one's is used. Harmless where several say so.
    pub fn sessions_turn_away(&self) {
        self.current_of_sessions.fetch_add(1, Ordering::AcqRel);
    }

    /// How long a request may take.
    pub fn wait_policy(&self) -> Duration {
        self.timeout
    }

    /// Says that the member of a stream failed.
    pub fn turn_away(&self) {
        self.turn_away_from(self.current.load(Ordering::Acquire));
    }

    /// A transaction, sent once.
    pub async fn txn(&self, txn: Txn) -> Result<TxnResponse, Failure> {
        let seen = self.revision();
        let asked = self.call(|client| async move { kv(&client).txn(txn).await });
        let answer = asked.await?;
        self.note(seen, answer.header())?;
        Ok(answer)
    }

    /// A linearizable read, asked of several members if need be.
    pub async fn get(&self, key: impl Into<Vec<u8>>, options: GetOptions) -> Result<GetResponse, Failure> {
        let seen = self.revision();
        let answer = self.get_whatever(key, options).await?;
        self.note(seen, answer.header())?;
        Ok(answer)
    }

    /// A read that may be of a store which was restored.
    pub async fn get_whatever(&self, key: impl Into<Vec<u8>>, options: GetOptions) -> Result<GetResponse, Failure> {
        let key = key.into();
        let (began, mut tries) = (Instant::now(), 1);
        loop {
            let (key, options) = (key.clone(), options.clone());
            let asked = self.call(|client| async move { kv(&client).get(key, Some(options)).await });
            match asked.await {
                // Members that hang are not asked one after another for long: the caller is told in time.
                Err(Failure::Unavailable(_) | Failure::NoQuorum(_))
                    if tries < READ_TRIES && began.elapsed() < self.timeout * 3 / 2 =>
                {
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }

    /// All keys of a range as they were at one revision, and that revision; read in pages, so that no answer is large.
    pub async fn range(&self, from: impl Into<Vec<u8>>, end: Vec<u8>) -> Result<(i64, Vec<KeyValue>), Failure> {
        let from = from.into();
        for _ in 0..READ_TRIES {
            match self.pages(from.clone(), &end).await {
                Err(Failure::Refused(said)) if said.contains(COMPACTED) => {}
                read => return read,
            }
        }
        Err(Failure::Unavailable("etcd: it was compacted while it was read".into()))
    }

    async fn pages(&self, mut from: Vec<u8>, end: &[u8]) -> Result<(i64, Vec<KeyValue>), Failure> {
        let (mut revision, mut all) = (0, Vec::new());
        loop {
            let page = GetOptions::new()
                .with_range(end)
                .with_limit(PAGE)
                .with_revision(revision);
            let mut read = self.get(from, page).await?;
            if revision == 0 {
                revision = read.header().map_or(0, ResponseHeader::revision);
            }
            let more = read.more();
            all.append(&mut read.take_kvs());
            match all.last() {
                Some(last) if more => from = [last.key(), &[0]].concat(),
                _ => return Ok((revision, all)),
            }
        }
    }

    /// The highest revision that was ever seen.
    pub fn revision(&self) -> i64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Forgets what was seen, for the cluster is another one.
    pub fn forget(&self) {
        self.revision.store(0, Ordering::Release);
    }

    /// How often the store was found restored; changes with each.
    pub fn restores(&self) -> watch::Receiver<u64> {
        self.restores.subscribe()
    }

    /// An answer is never older than what was seen before it was asked for, unless the store was
    /// restored. Nothing is taken from such an answer: the grant in it might have an old token.
    fn note(&self, seen: i64, header: Option<&ResponseHeader>) -> Result<(), Failure> {
        let revision = header.map_or(seen, ResponseHeader::revision);
        if revision < seen {
            self.restores.send_modify(|times| *times += 1);
            let text = format!("etcd went back from revision {seen} to {revision}: it was restored from a snapshot");
            return Err(Failure::Unavailable(text));
        }
        self.revision.fetch_max(revision, Ordering::AcqRel);
        Ok(())
    }

    async fn client(&self, at: usize) -> Result<Client, Error> {
        let member = &self.members[at % self.members.len()];
        // First the place, then the proof: what is made with an old one does not come into a new place.
        let place = member.client.load_full();
        place.get_or_try_init(|| self.connect(member)).await.cloned()
    }

    /// A client of a member, with what proves this server now.
    pub(super) async fn connect(&self, member: &Member) -> Result<Client, Error> {
        let options = self.proving.over(self.options.clone());
        Client::connect([&member.url], Some(options)).await
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Whether calls go to this member now.
    pub(super) fn is_current(&self, at: usize) -> bool {
        self.current.load(Ordering::Acquire) % self.members.len() == at
    }

    fn url(&self, at: usize) -> &str {
        &self.members[at % self.members.len()].url
    }

    /// Only the first who notices turns, or all callers together would turn past every member.
    fn turn_away_from(&self, at: usize) {
        let next = at.wrapping_add(1);
        let _ = self
            .current
            .compare_exchange(at, next, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// Reads and writes over a client, which take large answers.
fn kv(client: &Client) -> etcd_client::KvClient {
    client.kv_client().max_decoding_message_size(ANSWER_BYTES)
}

/// The codes of gRPC that are told apart.
mod code {
    pub const INVALID_ARGUMENT: i32 = 3;
    pub const NOT_FOUND: i32 = 5;
    pub const PERMISSION_DENIED: i32 = 7;
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    pub const OUT_OF_RANGE: i32 = 11;
    pub const UNAUTHENTICATED: i32 = 16;
}

/// What etcd says of a revision that is too old to be read.
const COMPACTED: &str = "revision has been compacted";

/// What an error of the client means.
pub fn failure(error: &Error) -> Failure {
    match error {
        Error::GRpcStatus(status) => meaning(status.code() as i32, status.message()),
        _ => Failure::Unavailable(format!("etcd: {error}")),
    }
}

/// What a status means. The transport on the way uses the same codes as etcd, also for answers that it does not carry,
/// and after the request took effect. So only what etcd itself has said counts as a refusal.
fn meaning(code: i32, said: &str) -> Failure {
    let refused = || Failure::Refused(format!("etcd: {said}"));
    match code {
        _ if !said.starts_with("etcdserver: ") => Failure::Unavailable(format!("etcd: {said}")),
        code::RESOURCE_EXHAUSTED if said.contains("space exceeded") => Failure::Full(format!("etcd: {said}")),
        code::PERMISSION_DENIED => Failure::Refused(format!("etcd: this server's account may not do that: {said}")),
        code::NOT_FOUND if said.contains("lease not found") => Failure::LeaseGone,
        code::INVALID_ARGUMENT | code::UNAUTHENTICATED | code::RESOURCE_EXHAUSTED | code::OUT_OF_RANGE => refused(),
        _ if said.contains("no leader") || said.contains("request timed out") || said.contains("leader changed") => {
            Failure::NoQuorum(format!("etcd: {said}"))
        }
        _ => Failure::Unavailable(format!("etcd: {said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::code::{INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNAUTHENTICATED};
    use super::*;

    #[test]
    fn only_what_etcd_itself_refuses_is_known_to_have_written_nothing() {
        for (code, said) in [
            (RESOURCE_EXHAUSTED, "etcdserver: too many requests"),
            (INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request"),
            (UNAUTHENTICATED, "etcdserver: invalid auth token"),
            (PERMISSION_DENIED, "etcdserver: permission denied"),
        ] {
            assert!(matches!(meaning(code, said), Failure::Refused(_)), "{said}");
        }
        let full = meaning(RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(full, Failure::Full(_)));
        let gone = meaning(NOT_FOUND, "etcdserver: requested lease not found");
        assert_eq!(gone, Failure::LeaseGone);
        for (code, said) in [
            (
                RESOURCE_EXHAUSTED,
                "grpc: trying to send message larger than max (5000000 vs. 4194304)",
            ),
            (RESOURCE_EXHAUSTED, "h2 protocol error: http2 error: ENHANCE_YOUR_CALM"),
            (RESOURCE_EXHAUSTED, "proxy: database space exceeded"),
            (INVALID_ARGUMENT, "transport: malformed header"),
            (
                UNAUTHENTICATED,
                "grpc-status header missing, mapped from HTTP status code 401",
            ),
            (
                PERMISSION_DENIED,
                "grpc-status header missing, mapped from HTTP status code 403",
            ),
            (NOT_FOUND, "proxy: lease not found"),
        ] {
            assert!(matches!(meaning(code, said), Failure::Unavailable(_)), "{said}");
        }
    }
}
