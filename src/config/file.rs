//! The tables of the configuration file, with their defaults and their documentation.
//!
//! The table of a store stands in its driver, in `src/backend/<store>/config.rs`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::listen::Listen;
use super::store_tables::StoreTables;
use super::words::DeclaredGuarantee;
use crate::limits::Limits;
use crate::name::MAX_NAME_BYTES;
use crate::quota::{Quota, Rate};
use crate::schema::{Count, Period, Ratio, section};
use crate::telemetry::{LogFilter, LogFormat};

mod access;

pub use self::access::{AuthSection, JwtSection, QuotaSection, RuleSection, TlsSection};

const SECOND: u64 = 1000;
const YEAR: u64 = 31_557_600 * SECOND;
const KIB: u32 = 1024;
const MIB: u32 = 1024 * KIB;

/// A time to live: up to a year.
pub type TtlBound = Period<1, YEAR>;
/// A time to wait: up to a year, or none.
pub type WaitBound = Period<0, YEAR>;
/// How much of something.
pub type QuotaCount = Count<1, 1_000_000>;
/// The longest that a drain may take.
pub type DrainTimeout = Period<0, { 600 * SECOND }>;

section! {
    /// The configuration of a Fencepost server. Times are written like "30s" or "1h 5m".
    /// Most keys of this first table and those of the log can also be given as flags and as
    /// FENCEPOST_ variables, which win over the file: see `fencepost serve --help`.
    pub struct File {
        /// Where to listen: TCP addresses and Unix sockets, several at once.
        listen: Vec<Listen> = vec![Listen::default()],
        /// Must be true to listen on an address that other machines can reach without a table
        /// tls: the connections are not encrypted.
        insecure: bool = false,
        /// Where to answer HTTP for those who watch over the server: /metrics for Prometheus, /healthz
        /// and /readyz for whoever starts and stops it. Host and port; nobody without it. For everybody
        /// who can reach it: it tells figures and names of namespaces only. Encrypted where tls
        /// covers the address, by the same certificate, but no client is asked for one.
        metrics_listen: Option<Listen> = None,
        /// Answers there in plain text, whatever tls says: kubelets and most scrapers within a cluster
        /// ask so. An address that other machines can reach needs this, insecure or tls. It does not
        /// change how calls are encrypted.
        metrics_insecure: bool = false,
        /// The namespaces whose stores must serve for /readyz to say so. Without any, it says whether
        /// this server takes calls: a store that is away is away for all servers that share it, and
        /// calls say so better than a server that is gone.
        ready_namespaces: Vec<String> = Vec::new(),
        /// The directory of everything that this server stores. Without it: fencepost in
        /// $XDG_DATA_HOME, or in ~/.local/share.
        data_dir: Option<PathBuf> = None,
        /// How long a shutdown waits for the calls under way before it cuts them off.
        drain_timeout: DrainTimeout = period_s(20),
    }
    tables {
        /// What the server accepts.
        server: ServerSection,
        /// The log.
        log: LogSection,
        /// Encryption.
        tls: Option<TlsSection>,
        /// Who may do what.
        auth: Option<AuthSection>,
        /// The traces.
        traces: TracesSection,
        /// The namespaces by name; without any, one named `default`.
        namespaces: BTreeMap<String, NamespaceSection>,
    }
}

section! {
    /// What the server accepts from its clients, whatever the namespace.
    pub struct ServerSection {
        /// The largest request, in bytes.
        request_bytes_limit: Count<{ 16 * KIB }, { 4 * MIB }> = Count::nearest(64 * KIB),
        /// The largest response, in bytes.
        response_bytes_limit: Count<{ 64 * KIB }, { 64 * MIB }> = Count::nearest(4 * MIB),
        /// How many bytes the claims take that one state of a lock shows (GetLock, WatchLock); its counts tell
        /// how many there are. Three quarters of response_bytes_limit at most.
        state_bytes_limit: Count<{ 16 * KIB }, { 48 * MIB }> = Count::nearest(256 * KIB),
        /// How many Acquire calls may be under way or waiting at once; more are refused with
        /// OVERLOADED.
        acquire_limit: Count<1, 1_000_000> = Count::nearest(50_000),
        /// How many other calls may be under way at once; as many again of Renew and Release, so
        /// that no other call ever keeps them out, and as many of health checks.
        call_limit: Count<1, 1_000_000> = Count::nearest(10_000),
        /// How many watches of locks may be open at once; as many again of streams of health and reflection.
        stream_limit: Count<1, 1_000_000> = Count::nearest(10_000),
        /// How many connections may be open at once; more are closed at once. Where callers are asked who they
        /// are, a quarter of them at most may be without a proof; beyond it the oldest of those is closed.
        connection_limit: Count<1, 1_000_000> = Count::nearest(10_000),
        /// How many calls one connection may have under way at once.
        connection_call_limit: Count<1, 1_000_000> = Count::nearest(100_000),
        /// How much of the limits above one identity may use, in percent, so that the others are served too,
        /// Renew and Release included. Calls without a proven identity do not count here.
        identity_share: Count<1, 100> = Count::nearest(50),
        /// The same for one peer address; of IPv6, for its network of 64 bits. Where all callers come through
        /// one proxy, 100.
        peer_share: Count<1, 100> = Count::nearest(50),
        /// How many bytes of answers may wait until their clients take them; beyond it an answer becomes
        /// OVERLOADED, and the connection with most of them is closed. The two shares hold here too. Whoever
        /// takes nothing for 15 seconds loses its stream or its connection.
        unsent_bytes_limit: Count<{ MIB }, { 1024 * MIB }> = Count::nearest(128 * MIB),
        /// How many of them on one connection.
        connection_unsent_bytes_limit: Count<{ 64 * KIB }, { 1024 * MIB }> = Count::nearest(32 * MIB),
        /// How many entries a page has when the request does not say.
        page_default: Count<1, 10_000> = Count::nearest(100),
        /// How many entries a page has at most; more are not refused, but cut to this.
        page_limit: Count<1, 10_000> = Count::nearest(1_000),
        /// How often a silent connection is asked for a sign of life.
        keepalive_interval: Period<SECOND, { 10 * SECOND }> = period_s(10),
        /// How long that sign may take before the connection counts as lost and its waiters
        /// leave their queues.
        keepalive_timeout: Period<SECOND, { 9 * SECOND }> = period_s(5),
    }
}

section! {
    /// The log, written to standard error.
    pub struct LogSection {
        /// What to log: off, error, warn, info, debug or trace; several with targets, such as
        /// "info,fencepost::api=debug". At info there is no line per request.
        level: LogFilter = LogFilter::default(),
        /// How to write it: "text" for people, "json" for machines.
        format: LogFormat = LogFormat::default(),
    }
}

section! {
    /// Traces of calls, sent as OTLP over gRPC. A caller's W3C context (traceparent) is taken up.
    pub struct TracesSection {
        /// Where to send them: http:// or https://. No call is traced without it.
        endpoint: Option<String> = None,
        /// The part of the calls without a context that is traced: 1 for all of them, which a busy server
        /// feels (benches/README.md). Of those with one a caller who is known decides.
        sample_ratio: Ratio = Ratio::HUNDREDTH,
    }
}

section! {
    /// A namespace: a set of locks that share a backend, its guarantee and these limits.
    pub struct NamespaceSection {
        /// The store of its locks: "embedded" keeps them in a file of this server,
        /// "redis" in a Redis that several servers share, "redlock" in 3, 5 or 7 of them of which a
        /// majority decides, "etcd" in an etcd cluster that several servers share.
        backend: String = "embedded".to_owned(),
        /// What the backend must promise, "ap" or "cp": the server does not start on one that
        /// promises less. Without it, whatever the backend promises.
        guarantee: Option<DeclaredGuarantee> = None,
        /// The smallest TTL that a lease may be given.
        ttl_min: TtlBound = TtlBound::nearest(Limits::default().ttl_min),
        /// The TTL of an Acquire that names none.
        ttl_default: TtlBound = TtlBound::nearest(Limits::default().ttl_default),
        /// The largest TTL that a lease may be given.
        ttl_max: TtlBound = TtlBound::nearest(Limits::default().ttl_max),
        /// The longest that an Acquire may wait.
        wait_max: WaitBound = WaitBound::nearest(Limits::default().wait_max),
        /// How many claims the queue of one lock takes, holders and waiters together.
        queue_limit: Count<1, 1_000_000> = Count::nearest(Limits::default().queue),
        /// The longest name of a lock, in bytes.
        name_limit: Count<1, { MAX_NAME_BYTES as u32 }> = Count::nearest(Limits::default().name_bytes),
        /// How many finished calls are remembered, for their retries.
        finished_limit: Count<0, 10_000_000> = Count::nearest(Limits::default().finished),
        /// How many holds a holder may have by re-entry.
        hold_limit: Count<1, 1_000_000> = Count::nearest(Limits::default().holds),
        /// How many bytes the owners and the metadata of all Acquires that wait on this server may have; more
        /// are refused with OVERLOADED, but for Acquires with 512 bytes or less. One identity may use its
        /// `identity_share` of them.
        waiting_bytes_limit: Count<{ 16 * KIB }, { 1024 * MIB }> = Count::nearest(Limits::default().waiting_bytes),
        /// How many calls a second this server takes for the namespace, but for Renew, Release and
        /// what operators do; more are refused with OVERLOADED. Absent: any number, as with the
        /// limits below.
        rate_limit: Option<QuotaCount> = None,
        /// How many of them may come at once after a rest; absent: as many as in a second.
        rate_burst: Option<QuotaCount> = None,
        /// How many leases this server counts in the namespace at once. It counts those that it
        /// granted, and Acquires under way, until it sees their end, or their time is over.
        lease_limit: Option<QuotaCount> = None,
        /// How many Acquires may wait on this server for locks of the namespace.
        waiter_limit: Option<QuotaCount> = None,
        /// How many WatchLock streams of the namespace this server keeps open.
        stream_limit: Option<QuotaCount> = None,
    }
    tables {
        /// The settings of its store, in a table of the store's name.
        #[serde(skip)]
        stores: StoreTables,
    }
}

impl NamespaceSection {
    /// What a namespace with these keys accepts on a server with those.
    pub fn limits(&self, server: &ServerSection) -> Limits {
        Limits {
            ttl_min: self.ttl_min.get(),
            ttl_default: self.ttl_default.get(),
            ttl_max: self.ttl_max.get(),
            wait_max: self.wait_max.get(),
            queue: self.queue_limit.get(),
            name_bytes: self.name_limit.get(),
            finished: self.finished_limit.get(),
            holds: self.hold_limit.get(),
            waiting_bytes: self.waiting_bytes_limit.get(),
            identity_share: server.identity_share.get(),
        }
    }
}

impl NamespaceSection {
    /// How much a namespace with these keys may be used.
    pub fn quota(&self) -> Quota {
        Quota {
            rate: rate(self.rate_limit, self.rate_burst),
            leases: self.lease_limit.map(Count::get),
            waiters: self.waiter_limit.map(Count::get),
            streams: self.stream_limit.map(Count::get),
        }
    }
}

fn rate(limit: Option<QuotaCount>, burst: Option<QuotaCount>) -> Option<Rate> {
    let limit = limit?;
    Some(Rate {
        per_second: limit.get(),
        burst: burst.unwrap_or(limit).get(),
    })
}

fn period_s<const MIN_MS: u64, const MAX_MS: u64>(seconds: u64) -> Period<MIN_MS, MAX_MS> {
    Period::nearest(std::time::Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_of_a_namespace_are_those_of_its_limits() {
        assert_eq!(
            NamespaceSection::default().limits(&ServerSection::default()),
            Limits::default()
        );
    }

    #[test]
    fn a_silent_connection_is_noticed_within_twenty_seconds() {
        let slowest: ServerSection =
            toml::from_str("keepalive_interval = '10s'\nkeepalive_timeout = '9s'").expect("the bounds themselves");
        let noticed = slowest.keepalive_interval.get() + slowest.keepalive_timeout.get();
        assert!(noticed.as_secs() < 20, "{noticed:?}");
        assert!(toml::from_str::<ServerSection>("keepalive_interval = '11s'").is_err());
        assert!(toml::from_str::<ServerSection>("keepalive_timeout = '10s'").is_err());
    }
}
