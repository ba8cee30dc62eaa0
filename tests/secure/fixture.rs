//! A server of this process, with what it is told about its callers.

use std::time::Duration;

use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{AcquireRequest, GetLockRequest, Lease, LockState, ReleaseRequest, RenewRequest};
use fencepost::api::{Access, Listener, Settings, serve_to};
use fencepost::auth::{Auth, BearerHash, Pattern, Policy, PolicySettings, Rule, Rules, Verb};
use fencepost::backend::embedded::Store;
use fencepost::limits::Limits;
use fencepost::locks::Locks;
use fencepost::name::Namespace;
use fencepost::namespaces::Namespaces;
use fencepost::quota::{QuotaSettings, Quotas};
use fencepost::tls::Tls;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_types::StatusExt;

/// Longer than any step of a test takes.
pub const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);
/// All namespaces of a case.
pub const NAMESPACES: [&str; 3] = ["jobs", "other", "team-a"];

/// A running server; it ends with the runtime.
pub struct Fixture {
    /// `127.0.0.1:PORT`.
    pub address: String,
    pub access: Access,
    _stop: oneshot::Sender<()>,
}

impl Fixture {
    /// One that listens in the clear.
    pub async fn open(access: Access) -> Self {
        Self::start(access, None, Settings::default()).await
    }

    pub async fn start(access: Access, tls: Option<Tls>, settings: Settings) -> Self {
        let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).await;
        let mut listener = listener.expect("a port");
        if let Some(tls) = tls {
            listener = listener.with_tls(tls);
        }
        let address = listener.local_addr();
        let store = Store::memory();
        let locks = NAMESPACES.map(|name| {
            let namespace = Namespace::new(name).expect("a namespace");
            Locks::new(namespace.clone(), Limits::default(), store.namespace(namespace))
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async { drop(stopped.await) };
        let namespaces = Namespaces::new(locks.into());
        tokio::spawn(serve_to(access.clone(), vec![listener], namespaces, settings, stopped));
        Self {
            address,
            access,
            _stop: stop,
        }
    }

    /// A caller in the clear that shows this bearer token.
    pub async fn caller(&self, bearer: Option<&str>) -> Caller {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).expect("an address");
        Caller {
            channel: endpoint.connect().await.expect("the server accepts"),
            bearer: bearer.map(str::to_owned),
        }
    }
}

/// Somebody who calls.
#[derive(Debug, Clone)]
pub struct Caller {
    pub channel: Channel,
    pub bearer: Option<String>,
}

impl Caller {
    /// The same connection with another token.
    pub fn showing(&self, bearer: &str) -> Self {
        Self {
            channel: self.channel.clone(),
            bearer: Some(bearer.to_owned()),
        }
    }

    /// A request that shows who sends it.
    pub fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if let Some(bearer) = &self.bearer {
            let value = format!("Bearer {bearer}").parse().expect("a header");
            request.metadata_mut().insert("authorization", value);
        }
        request
    }

    pub fn locks(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel.clone())
    }

    pub async fn acquire(&self, ask: AcquireRequest) -> Result<Lease, Status> {
        let answer = self.locks().acquire(self.request(ask)).await?;
        Ok(answer.into_inner().lease.expect("a lease"))
    }

    pub async fn renew(&self, lease: &Lease) -> Result<Lease, Status> {
        let lease_id = lease.lease_id.clone();
        let answer = self
            .locks()
            .renew(self.request(RenewRequest { lease_id, ttl: None }))
            .await?;
        Ok(answer.into_inner().lease.expect("a lease"))
    }

    pub async fn release(&self, lease: &Lease) -> Result<(), Status> {
        let lease_id = lease.lease_id.clone();
        let answer = self
            .locks()
            .release(self.request(ReleaseRequest {
                lease_id,
                keep_for: None,
            }))
            .await;
        answer.map(drop)
    }

    pub async fn inspect(&self, namespace: &str, name: &str) -> Result<LockState, Status> {
        let ask = GetLockRequest {
            namespace: namespace.into(),
            name: name.into(),
        };
        let answer = self.locks().get_lock(self.request(ask)).await?;
        Ok(answer.into_inner().lock.expect("a state"))
    }
}

/// A try of a lock.
pub fn ask(namespace: &str, name: &str) -> AcquireRequest {
    AcquireRequest {
        namespace: namespace.into(),
        name: name.into(),
        owner: "me".into(),
        ..AcquireRequest::default()
    }
}

/// A static token, whose text is its name with `secret-` before it.
pub fn bearer(name: &str) -> BearerHash {
    let hash = Sha256::digest(format!("secret-{name}"));
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    BearerHash::parse(&format!("{name}:{digits}")).expect("a static token")
}

pub fn rule(identities: &[&str], namespaces: &[&str], locks: &[&str], verbs: &[Verb]) -> Rule {
    let patterns = |texts: &[&str]| {
        let all = texts.iter().map(|text| Pattern::new(text).expect("a pattern"));
        all.collect()
    };
    Rule {
        identities: patterns(identities),
        namespaces: patterns(namespaces),
        locks: locks.iter().map(ToString::to_string).collect(),
        verbs: verbs.to_vec(),
    }
}

/// Everybody who is somebody may do everything.
pub fn everything() -> Rules {
    let verbs = [Verb::Acquire, Verb::Read, Verb::Admin];
    Rules::new(vec![rule(&["*"], &["*"], &[""], &verbs)])
}

/// A policy with no limits beside it.
pub fn access(settings: &PolicySettings) -> Access {
    limited(settings, QuotaSettings::default())
}

pub fn limited(settings: &PolicySettings, quotas: QuotaSettings) -> Access {
    Access {
        auth: Auth::new(Some(Policy::open(settings).expect("a policy"))),
        quotas: Quotas::new(quotas),
    }
}

/// A value of an error's metadata; empty where there is none.
pub fn detail(status: &Status, key: &str) -> String {
    let info = status.get_details_error_info();
    let value = info.and_then(|info| info.metadata.get(key).cloned());
    value.unwrap_or_default()
}

/// Asks until it is so.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so().await {
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(POLL).await;
    }
}
