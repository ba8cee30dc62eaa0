//! The client of the cluster: one per endpoint. All calls go to one member until that fails, but those that name a client
//! ([`MemberClient`]). (The balancer of etcd-client keeps sending calls to a dead member.)

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use etcd_client::{Client, ConnectOptions, Error, GetOptions, GetResponse, KeyValue, ResponseHeader, Txn, TxnResponse};
use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell, watch};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::settings::{Credentials, Settings, with_credentials};
use super::{Failure, failure};

/// The text of etcd's error for a compacted revision.
const COMPACTED: &str = "revision has been compacted";
/// How often a read is tried.
const READ_TRIES: usize = 3;
/// The number of keys per page of a range read: with the largest metadata, a page has some 2 MB.
const PAGE: i64 = 500;
/// The size limit of an answer of etcd, in bytes. Large ranges are read in pages, but a page of holders with many holds
/// each, or the answer to a full batch, may exceed the client's default limit of 4 MiB.
pub const ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// See the module.
pub struct ClusterClient {
    members: Vec<Member>,
    current: AtomicUsize,
    /// The index of the member for the keep-alives of sessions.
    current_of_sessions: AtomicUsize,
    /// The options of a client, without the credentials.
    options: ConnectOptions,
    pub(super) credentials: ArcSwap<Credentials>,
    /// How often a member's client was replaced, with the credentials.
    pub(super) renewals: AtomicU64,
    /// Notified when a call failed: new credentials that are not in use yet may mend that.
    pub(super) call_failed: Arc<Notify>,
    /// The task that makes clients with the latest credentials. It is aborted by the next replacement, or when this is
    /// dropped.
    pub(super) renewal: Mutex<Option<AbortOnDropHandle<()>>>,
    timeout: Duration,
    /// The highest revision of any answer. A lower one shows that a snapshot was restored.
    revision: AtomicI64,
    /// How often a lower one was received.
    restores: watch::Sender<u64>,
}

/// A member, and the client that calls go over.
pub(super) struct Member {
    pub(super) url: String,
    /// Made with the first call, and replaced with the credentials.
    pub(super) client: ArcSwap<OnceCell<Client>>,
    /// The client for the keep-alives of sessions alone, so that neither large nor many calls delay those.
    pub(super) of_sessions: ArcSwap<OnceCell<Client>>,
}

/// Where calls go, and to which store: it changes with the member that is called, and with each answer that showed a
/// restored store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    member: usize,
    restores: u64,
}

/// A client of a member, with the credentials that it was made with.
#[derive(Clone)]
pub struct MemberClient {
    client: Client,
    /// Where it goes.
    pub route: Route,
    renewals: u64,
}

impl fmt::Debug for MemberClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberClient")
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ClusterClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<_> = self.members.iter().map(|member| &member.url).collect();
        f.debug_struct("ClusterClient")
            .field("endpoints", &urls)
            .finish_non_exhaustive()
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
            credentials: ArcSwap::from_pointee(settings.credentials.clone()),
            renewals: AtomicU64::new(0),
            call_failed: Arc::default(),
            renewal: Mutex::default(),
            timeout: settings.timeout,
            revision: AtomicI64::new(0),
            restores: watch::Sender::new(0),
        }
    }

    /// Sends one request. After a failure that another member may not have, the next call goes to another member.
    pub async fn call<T, F>(&self, ask: impl FnOnce(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let at = self.current();
        self.call_at(at, async { ask(self.client(at).await?).await }).await
    }

    /// Waits for the answer of this member.
    async fn call_at<T>(&self, at: usize, asked: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
        // Boxed, because the future of one call takes 10 KB, which every future around it would contain and move.
        let answer = match timeout(self.timeout, Box::pin(asked)).await {
            Ok(answer) => answer.map_err(|error| failure(&error)),
            Err(_) => Err(Failure::silent(self.url(at))),
        };
        if matches!(answer, Err(Failure::Unavailable(_) | Failure::NoQuorum(_))) {
            self.turn_away_from(at);
        }
        if answer.is_err() {
            self.call_failed.notify_one();
        }
        answer
    }

    /// The client for the keep-alives of sessions, whose connection carries nothing else.
    pub async fn for_sessions(&self) -> Result<Client, Failure> {
        let at = self.current_of_sessions.load(Ordering::Acquire) % self.members.len();
        let member = &self.members[at];
        let cell = member.of_sessions.load_full();
        let connected = timeout(self.timeout, cell.get_or_try_init(|| self.connect(member))).await;
        let connected = connected.map_err(|_| Failure::silent(&member.url))?;
        connected.cloned().map_err(|error| failure(&error))
    }

    /// Switches the keep-alives of sessions to the next member. Concurrent callers may skip members, which is harmless.
    pub fn sessions_turn_away(&self) {
        self.current_of_sessions.fetch_add(1, Ordering::AcqRel);
    }

    /// The request timeout.
    pub fn request_timeout(&self) -> Duration {
        self.timeout
    }

    /// Executes a transaction, which is sent once.
    pub async fn txn(&self, txn: Txn) -> Result<TxnResponse, Failure> {
        self.txn_over(&self.member_client().await?, txn).await
    }

    /// The same over this client.
    pub async fn txn_over(&self, over: &MemberClient, txn: Txn) -> Result<TxnResponse, Failure> {
        let seen = self.revision();
        let asked = self.call_over(over, |client| async move { kv(&client).txn(txn).await });
        let answer = asked.await?;
        self.note(seen, answer.header())?;
        Ok(answer)
    }

    /// Sends one request over this client.
    pub async fn call_over<T, F>(&self, over: &MemberClient, ask: impl FnOnce(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.call_at(over.route.member, ask(over.client.clone())).await
    }

    /// The client that calls go over now.
    pub async fn member_client(&self) -> Result<MemberClient, Failure> {
        // Before the client, so that one with old credentials does not count as renewed.
        let (route, renewals) = (self.route(), self.renewals.load(Ordering::Acquire));
        let client = self.call_at(route.member, self.client(route.member)).await?;
        Ok(MemberClient {
            client,
            route,
            renewals,
        })
    }

    /// Whether a client has other credentials than those that were taken last.
    pub fn has_old_credentials(&self, client: &MemberClient) -> bool {
        client.renewals != self.renewals.load(Ordering::Acquire)
    }

    /// A linearizable read, retried with other members.
    pub async fn get(&self, key: impl Into<Vec<u8>>, options: GetOptions) -> Result<GetResponse, Failure> {
        let seen = self.revision();
        let answer = self.get_whatever(key, options).await?;
        self.note(seen, answer.header())?;
        Ok(answer)
    }

    /// The same read, which also returns answers of a store that was restored from a snapshot.
    async fn get_whatever(&self, key: impl Into<Vec<u8>>, options: GetOptions) -> Result<GetResponse, Failure> {
        let key = key.into();
        let (began, mut tries) = (Instant::now(), 1);
        loop {
            let (key, options) = (key.clone(), options.clone());
            let asked = self.call(|client| async move { kv(&client).get(key, Some(options)).await });
            match asked.await {
                // No further member is tried after 1.5 request timeouts, so that the caller gets its error in time.
                Err(Failure::Unavailable(_) | Failure::NoQuorum(_))
                    if tries < READ_TRIES && began.elapsed() < self.timeout * 3 / 2 =>
                {
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }

    /// Reads all keys of a range at one revision, and returns that revision. It reads in pages, so that no answer is
    /// large.
    pub async fn range(&self, from: impl Into<Vec<u8>>, end: Vec<u8>) -> Result<(i64, Vec<KeyValue>), Failure> {
        self.range_with(from.into(), &end, &GetOptions::new()).await
    }

    /// The same without the values.
    pub async fn keys(&self, from: impl Into<Vec<u8>>, end: Vec<u8>) -> Result<(i64, Vec<KeyValue>), Failure> {
        self.range_with(from.into(), &end, &GetOptions::new().with_keys_only())
            .await
    }

    async fn range_with(
        &self,
        from: Vec<u8>,
        end: &[u8],
        options: &GetOptions,
    ) -> Result<(i64, Vec<KeyValue>), Failure> {
        for _ in 0..READ_TRIES {
            match self.pages(from.clone(), end, options).await {
                Err(Failure::Refused(message)) if message.contains(COMPACTED) => {}
                read => return read,
            }
        }
        Err(Failure::Unavailable("its history was compacted during a read".into()))
    }

    async fn pages(
        &self,
        mut from: Vec<u8>,
        end: &[u8],
        options: &GetOptions,
    ) -> Result<(i64, Vec<KeyValue>), Failure> {
        let (mut revision, mut all) = (0, Vec::new());
        loop {
            let page = options.clone().with_range(end).with_limit(PAGE);
            let mut read = self.get(from, page.with_revision(revision)).await?;
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

    /// The highest revision of any answer.
    fn revision(&self) -> i64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Catches up over a new connection: if the store is at a lower revision than before, it was restored, and that is told
    /// to everyone who follows [`Self::restores`]. `readable` is a key that this server may read.
    pub async fn catch_up(&self, readable: &str) -> Result<(), Failure> {
        let highest = self.revision();
        let read = self.get_whatever(readable, GetOptions::new().with_keys_only()).await?;
        let revision = read.header().map_or(highest, ResponseHeader::revision);
        if revision < highest {
            tracing::warn!(
                revision,
                highest,
                "etcd returned an older revision: it was restored from a snapshot"
            );
            self.restores.send_modify(|times| *times += 1);
            self.revision.store(revision, Ordering::Release);
        }
        Ok(())
    }

    /// See [`Route`].
    pub fn route(&self) -> Route {
        Route {
            member: self.current(),
            restores: *self.restores.borrow(),
        }
    }

    /// Counts the answers that showed a restored store.
    pub fn restores(&self) -> watch::Receiver<u64> {
        self.restores.subscribe()
    }

    /// Checks an answer's revision against the highest revision before its request. A lower one shows that the store
    /// was restored. Such an answer is an error, because a grant in it might have an old token.
    fn note(&self, seen: i64, header: Option<&ResponseHeader>) -> Result<(), Failure> {
        let revision = header.map_or(seen, ResponseHeader::revision);
        if revision < seen {
            self.restores.send_modify(|times| *times += 1);
            let text = format!("it returned revision {revision} after {seen}: it was restored from a snapshot");
            return Err(Failure::Unavailable(text));
        }
        self.revision.fetch_max(revision, Ordering::AcqRel);
        Ok(())
    }

    async fn client(&self, at: usize) -> Result<Client, Error> {
        let member = &self.members[at % self.members.len()];
        // The cell is loaded before the credentials: so a client with old credentials is never stored in a new cell.
        let cell = member.client.load_full();
        cell.get_or_try_init(|| self.connect(member)).await.cloned()
    }

    /// Makes a client of a member with the current credentials.
    pub(super) async fn connect(&self, member: &Member) -> Result<Client, Error> {
        let options = with_credentials(&self.credentials.load(), self.options.clone());
        Client::connect([&member.url], Some(options)).await
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// The number of the member that calls go to. It rises with each switch to another one.
    fn current(&self) -> usize {
        self.current.load(Ordering::Acquire)
    }

    fn url(&self, at: usize) -> &str {
        &self.members[at % self.members.len()].url
    }

    /// Switches to the next member, unless another caller has switched already. Otherwise concurrent callers would skip
    /// members.
    fn turn_away_from(&self, at: usize) {
        let next = at.wrapping_add(1);
        let _ = self
            .current
            .compare_exchange(at, next, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// The key-value client, with the raised limit of an answer's size.
fn kv(client: &Client) -> etcd_client::KvClient {
    client.kv_client().max_decoding_message_size(ANSWER_BYTES)
}
