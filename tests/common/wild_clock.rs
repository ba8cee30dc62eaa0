//! Servers on one store, as their users run them, of which one has a wrong wall clock. What is asked for is how the
//! namespace `faults` is configured.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fencepost::api::proto::admin_service_client::AdminServiceClient;
use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{
    AcquireRequest, AdmitRequest, GetLockRequest, Lease, ListNamespacesRequest, LockState, NamespaceHealth,
    NamespaceInfo, ReleaseRequest, RenewRequest,
};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::clock_shim;
use crate::faults::stores::OneServer;
use crate::forwarder::Forwarder;
use crate::server::Server;

/// Longer than a test takes.
const TTL: Duration = Duration::from_secs(120);
/// How long anything may take that nothing promises.
const READY: Duration = Duration::from_secs(30);
const LISTEN: [&str; 6] = [
    "--listen",
    "127.0.0.1:0",
    "--metrics-listen",
    "127.0.0.1:0",
    "--config",
    "config.toml",
];
const YEAR: i64 = 365 * 86_400;
/// What the log and the answers name.
const PAGE: &str = "see docs/clock.md";

struct Service {
    server: Server,
    home: TempDir,
    locks: LockServiceClient<Channel>,
    admin: AdminServiceClient<Channel>,
}

impl Service {
    /// A server whose clock is so many seconds ahead.
    async fn start(namespace: &str, ahead: i64) -> Self {
        let home = tempfile::tempdir().expect("a home");
        let config = format!("[namespaces.faults]\n{namespace}\n");
        std::fs::write(home.path().join("config.toml"), config).expect("its configuration");
        clock_shim::build(home.path());
        clock_shim::write_shift(home.path(), [ahead, 0]);
        let mut through = Command::new("env");
        for (name, value) in clock_shim::environment(home.path()) {
            through.arg(format!("{name}={}", value.display()));
        }
        let server = Server::start_by(through, &home, &LISTEN);
        let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).expect("an address");
        let channel = endpoint.connect().await.expect("it listens");
        Self {
            server,
            home,
            locks: LockServiceClient::new(channel.clone()),
            admin: AdminServiceClient::new(channel),
        }
    }

    fn shift(&self, ahead: i64) {
        clock_shim::write_shift(self.home.path(), [ahead, 0]);
    }

    async fn info(&self) -> NamespaceInfo {
        let answer = self.admin.clone().list_namespaces(ListNamespacesRequest {}).await;
        let mut namespaces = answer.expect("it answers").into_inner().namespaces;
        let at = namespaces.iter().position(|namespace| namespace.name == "faults");
        namespaces.swap_remove(at.expect("it is configured"))
    }

    /// Waits until what it says of the namespace is so.
    async fn says(&self, wanted: impl Fn(&NamespaceInfo) -> bool) -> NamespaceInfo {
        let end = Instant::now() + READY;
        loop {
            let info = self.info().await;
            if wanted(&info) {
                return info;
            }
            assert!(Instant::now() < end, "{info:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn serves(&self) -> NamespaceInfo {
        self.says(|info| info.health() == NamespaceHealth::Serving).await
    }

    /// What it says when it is asked whether it is ready.
    fn readiness(&self) -> String {
        let address = self.server.metrics.as_ref().expect("an HTTP port");
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(READY)).expect("a socket");
        let ask = "GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(ask.as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Waits until it refuses the clock, and says so.
    async fn refuses(&self) {
        let is_said = |info: &NamespaceInfo| info.reason.contains("wall clock of this server");
        let info = self.says(is_said).await;
        assert!(info.reason.contains(PAGE), "{info:?}");
        assert_eq!(info.health(), NamespaceHealth::Unavailable);
        let ready = self.readiness();
        // A server that started with this clock has not served yet.
        let says = ["faults does not serve", "faults has not served since the start"];
        assert!(says.iter().any(|says| ready.contains(says)), "{ready}");
        assert!(self.server.said("wall clock of this server"));
        let refused = self
            .acquire("refused", Duration::ZERO)
            .await
            .expect_err("it grants nothing");
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
        assert!(refused.message().contains(PAGE), "{refused:?}");
    }

    async fn acquire(&self, name: &str, wait: Duration) -> Result<Lease, Status> {
        let ask = AcquireRequest {
            namespace: "faults".into(),
            name: name.into(),
            owner: "tester".into(),
            ttl: Some(TTL.try_into().expect("a TTL")),
            wait: Some(wait.try_into().expect("a time")),
            ..AcquireRequest::default()
        };
        Ok(self
            .locks
            .clone()
            .acquire(ask)
            .await?
            .into_inner()
            .lease
            .expect("a lease"))
    }

    async fn take(&self, name: &str) -> Lease {
        self.acquire(name, READY).await.expect("it is free")
    }

    async fn look(&self, name: &str) -> LockState {
        let ask = GetLockRequest {
            namespace: "faults".into(),
            name: name.into(),
        };
        let answer = self.locks.clone().get_lock(ask).await.expect("it answers");
        answer.into_inner().lock.expect("its state")
    }

    async fn renew(&self, lease: &Lease) {
        let (lease_id, ttl) = (lease.lease_id.clone(), None);
        let renewed = self.locks.clone().renew(RenewRequest { lease_id, ttl }).await;
        renewed.expect("it is held");
    }

    async fn release(&self, lease: &Lease) {
        let lease_id = lease.lease_id.clone();
        let released = self
            .locks
            .clone()
            .release(ReleaseRequest {
                lease_id,
                keep_for: None,
            })
            .await;
        released.expect("it is held");
    }

    /// Acquires and releases a lock, and returns its token.
    async fn token(&self, name: &str) -> u64 {
        let lease = self.take(name).await;
        self.release(&lease).await;
        lease.fencing_token
    }

    async fn admit(&self) -> Result<(), Status> {
        let ask = AdmitRequest {
            namespace: "faults".into(),
            ..AdmitRequest::default()
        };
        self.admin.clone().admit(ask).await.map(drop)
    }
}

/// A time on the scale of tokens.
fn now(ahead: i64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a right clock");
    let micros = i64::try_from(now.as_micros()).expect("a right clock") + ahead * 1_000_000;
    u64::try_from(micros).expect("after 1970")
}

/// Within an hour of a time: elections move the tokens by as much.
fn is_near(token: u64, ahead: i64) -> bool {
    token.abs_diff(now(ahead)) < 2 * 3_600 * 1_000_000
}

/// A server in the year 2326, beyond the range of tokens.
pub async fn a_clock_beyond_the_range_ruins_nothing(namespace: &str) {
    // The first server of all: the store knows nothing that a clock could be compared with.
    let wild = Service::start(namespace, 300 * YEAR).await;
    wild.refuses().await;
    let refused = wild.admit().await.expect_err("it cannot be right");
    assert!(refused.message().contains(PAGE), "{refused:?}");
    let right = Service::start(namespace, 0).await;
    right.serves().await;
    let held = right.take("held").await;
    assert!(is_near(held.fencing_token, 0), "{held:?}");
    // What is held can be kept and given back there, and does not wait for it.
    wild.refuses().await;
    wild.renew(&held).await;
    wild.release(&held).await;
    assert!(right.token("held").await > held.fencing_token);
    wild.shift(0);
    wild.serves().await;
    let token = wild.token("held").await;
    assert!(is_near(token, 0), "{token}");
    assert!(wild.server.said("agrees with the tokens again"));
}

/// A server that is two years ahead: nobody can know which one is right.
pub async fn a_clock_years_ahead_raises_no_token_until_it_is_admitted(namespace: &str) {
    let right = Service::start(namespace, 0).await;
    right.serves().await;
    let refused = right.admit().await.expect_err("there is nothing to admit");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let before = right.token("a").await;
    let ahead = Service::start(namespace, 2 * YEAR).await;
    let also_ahead = Service::start(namespace, 2 * YEAR).await;
    for server in [&ahead, &also_ahead] {
        server.refuses().await;
    }
    let between = right.token("a").await;
    assert!(between > before && is_near(between, 0), "{between}");
    ahead.admit().await.expect("it can be right");
    ahead.serves().await;
    let admitted = ahead.token("a").await;
    assert!(is_near(admitted, 2 * YEAR), "{admitted}");
    also_ahead.serves().await;
    assert!(also_ahead.token("a").await > admitted);
    // The other one, whose clock is two years behind the tokens now, goes on.
    assert!(right.token("a").await > admitted);
    let restarted = Service::start(namespace, 0).await;
    restarted.serves().await;
    assert!(restarted.token("a").await > admitted);
    assert!(restarted.server.said("tokens rise without a clock"));
}

/// What is held can be seen, kept and given back at a server that is two years ahead.
pub async fn a_clock_years_ahead_keeps_leases_until_it_is_right(namespace: &str) {
    let right = Service::start(namespace, 0).await;
    right.serves().await;
    let held = right.take("held").await;
    let ahead = Service::start(namespace, 2 * YEAR).await;
    ahead.refuses().await;
    ahead.renew(&held).await;
    let shown = ahead.look("held").await;
    assert_eq!(shown.holders[0].fencing_token, held.fencing_token, "{shown:?}");
    ahead.release(&held).await;
    assert_eq!(right.look("held").await.holder_count, 0);
    ahead.shift(0);
    ahead.serves().await;
    let token = ahead.token("held").await;
    assert!(token > held.fencing_token && is_near(token, 0), "{token}");
}

/// Days less than the year that is too much, and days more.
pub async fn a_clock_less_than_a_year_ahead_grants(namespace: &str) {
    const DAYS: i64 = 3 * 86_400;
    let right = Service::start(namespace, 0).await;
    right.serves().await;
    let before = right.token("a").await;
    Service::start(namespace, YEAR + DAYS).await.refuses().await;
    let ahead = Service::start(namespace, YEAR - DAYS).await;
    ahead.serves().await;
    assert!(ahead.token("a").await > before);
}

/// A server in 1970, at first alone.
pub async fn a_clock_of_1970_is_safe(namespace: &str) {
    let back = -i64::try_from(now(0) / 1_000_000).expect("a right clock") + 1_000;
    let old = Service::start(namespace, back).await;
    let info = old.serves().await;
    assert!(info.reason.contains(PAGE), "{info:?}");
    assert!(old.server.said("wall clock of this server"));
    let first = old.token("a").await;
    assert!(first > 1_577_836_800_000_000, "{first}");
    let right = Service::start(namespace, 0).await;
    assert_eq!(right.serves().await.reason, "");
    let second = right.token("a").await;
    assert!(is_near(second, 0), "{second}");
    assert!(old.token("a").await > second);
    let again = Service::start(namespace, back).await;
    again.serves().await;
    let third = again.token("a").await;
    assert!(third > second && is_near(third, 0), "{third}");
    assert!(right.token("a").await > third);
}

/// Tokens that are more than a month behind the clock are raised while a server runs.
pub async fn tokens_follow_the_clock_while_a_server_runs(namespace: &str) {
    let service = Service::start(namespace, 0).await;
    service.serves().await;
    let before = service.token("a").await;
    let month = 40 * 86_400;
    service.shift(month);
    let end = Instant::now() + READY;
    loop {
        let token = service.token("a").await;
        assert!(token > before);
        if is_near(token, month) {
            return;
        }
        assert!(Instant::now() < end, "{token}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A server whose clock jumps while it runs, before it connects again: what is held there can be given back, also where a
/// call waits for it.
pub async fn a_clock_that_jumps_keeps_nothing_held<S: OneServer>() {
    let store = S::start();
    let way = Forwarder::before(store.port()).await;
    let service = Service::start(&S::namespace_at(&way.address()), 0).await;
    service.serves().await;
    let held = service.take("held").await;
    let waiting = tokio::spawn({
        let mut locks = service.locks.clone();
        let ask = AcquireRequest {
            namespace: "faults".into(),
            name: "held".into(),
            owner: "waiter".into(),
            wait: Some(TTL.try_into().expect("a time")),
            ..AcquireRequest::default()
        };
        async move { locks.acquire(ask).await }
    });
    let end = Instant::now() + READY;
    while service.look("held").await.waiter_count != 1 {
        assert!(Instant::now() < end, "nobody waits");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    service.shift(300 * YEAR);
    way.cut();
    service
        .says(|info| info.health() == NamespaceHealth::Unavailable && info.reason.contains(PAGE))
        .await;
    service.release(&held).await;
    waiting.abort();
}
