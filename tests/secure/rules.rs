//! What each identity may do, and what it is told when it may not.

use fencepost::api::proto::admin_service_client::AdminServiceClient;
use fencepost::api::proto::{
    AdmitRequest, CheckTokenRequest, ForceReleaseRequest, ListLocksRequest, ListNamespacesRequest, WatchLockRequest,
};
use fencepost::auth::{Policy, PolicySettings, Rules, Verb};
use tonic::{Code, Status, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::asks::reason;
use super::fixture::{Caller, Fixture, PATIENCE, access, ask, bearer, detail, rule};

fn settings() -> PolicySettings {
    use Verb::{Acquire, Admin, Read};
    PolicySettings {
        bearers: ["worker", "viewer", "operator", "chief"].map(bearer).into(),
        rules: Rules::new(vec![
            rule(&["token:worker"], &["jobs"], &["reports/", "mail/"], &[Acquire]),
            rule(&["token:viewer"], &["jobs", "team-*"], &["reports/"], &[Read]),
            rule(&["token:operator"], &["jobs"], &["reports/"], &[Admin]),
            rule(&["token:chief"], &["*"], &[""], &[Acquire, Read, Admin]),
        ]),
        ..PolicySettings::default()
    }
}

/// A server with these rules, and its callers.
struct Ruled {
    fixture: Fixture,
    worker: Caller,
    viewer: Caller,
    operator: Caller,
    chief: Caller,
}

impl Ruled {
    async fn start() -> Self {
        let fixture = Fixture::open(access(&settings())).await;
        let worker = fixture.caller(Some("secret-worker")).await;
        Self {
            viewer: worker.showing("secret-viewer"),
            operator: worker.showing("secret-operator"),
            chief: worker.showing("secret-chief"),
            worker,
            fixture,
        }
    }
}

#[track_caller]
fn denied<T>(answer: Result<T, Status>, missing: &str, verb: &str, namespace: &str) {
    let status = answer.err().expect("an error");
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert_eq!(reason(&status), "PERMISSION_DENIED");
    let told = ["missing", "verb", "namespace"].map(|key| detail(&status, key));
    assert_eq!(told, [missing, verb, namespace], "{status:?}");
}

async fn list(caller: &Caller, namespace: &str, prefix: &str) -> Result<Vec<String>, Status> {
    let ask = ListLocksRequest {
        namespace: namespace.into(),
        prefix: prefix.into(),
        ..ListLocksRequest::default()
    };
    let answer = caller.locks().list_locks(caller.request(ask)).await?;
    Ok(answer.into_inner().locks.into_iter().map(|lock| lock.name).collect())
}

async fn watch(caller: &Caller, namespace: &str, name: &str) -> Result<(), Status> {
    let ask = WatchLockRequest {
        namespace: namespace.into(),
        name: name.into(),
    };
    let mut seen = caller.locks().watch_lock(caller.request(ask)).await?.into_inner();
    seen.message().await.map(drop)
}

async fn check(caller: &Caller, namespace: &str, name: &str) -> Result<(), Status> {
    let ask = CheckTokenRequest {
        namespace: namespace.into(),
        name: name.into(),
        fencing_token: 1,
    };
    caller.locks().check_token(caller.request(ask)).await.map(drop)
}

async fn force(caller: &Caller, name: &str, fencing_token: u64) -> Result<(), Status> {
    let ask = ForceReleaseRequest {
        namespace: "jobs".into(),
        name: name.into(),
        fencing_token,
        reason: String::new(),
    };
    let mut admin = AdminServiceClient::new(caller.channel.clone());
    admin.force_release(caller.request(ask)).await.map(drop)
}

async fn admit(caller: &Caller) -> Result<(), Status> {
    let ask = AdmitRequest {
        namespace: "jobs".into(),
        node: String::new(),
    };
    let mut admin = AdminServiceClient::new(caller.channel.clone());
    admin.admit(caller.request(ask)).await.map(drop)
}

async fn namespaces(caller: &Caller) -> Result<Vec<String>, Status> {
    let mut admin = AdminServiceClient::new(caller.channel.clone());
    let answer = admin.list_namespaces(caller.request(ListNamespacesRequest {})).await?;
    Ok(answer.into_inner().namespaces.into_iter().map(|one| one.name).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verb_acquire_takes_renews_and_gives_back_where_it_is_allowed() {
    let ruled = Ruled::start().await;
    let lease = ruled.worker.acquire(ask("jobs", "mail/1")).await.expect("allowed");
    ruled.worker.renew(&lease).await.expect("allowed");
    for other in [&ruled.viewer, &ruled.operator] {
        denied(other.renew(&lease).await, "verb", "acquire", "jobs");
        denied(other.release(&lease).await, "verb", "acquire", "jobs");
        denied(other.acquire(ask("jobs", "reports/1")).await, "verb", "acquire", "jobs");
    }
    ruled.worker.release(&lease).await.expect("allowed");
    for (namespace, name, missing) in [
        ("jobs", "reports", "lock"),
        ("jobs", "a/reports/", "lock"),
        ("jobs", "Reports/1", "lock"),
        ("other", "reports/1", "namespace"),
        ("jobs2", "reports/1", "namespace"),
    ] {
        denied(
            ruled.worker.acquire(ask(namespace, name)).await,
            missing,
            "acquire",
            namespace,
        );
    }
    let elsewhere = ruled.chief.acquire(ask("other", "a")).await.expect("allowed");
    denied(ruled.worker.renew(&elsewhere).await, "namespace", "acquire", "other");
    denied(ruled.worker.release(&elsewhere).await, "namespace", "acquire", "other");
    ruled.chief.release(&elsewhere).await.expect("it is still held");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verb_read_looks_where_it_is_allowed() {
    let ruled = Ruled::start().await;
    ruled.chief.acquire(ask("jobs", "reports/1")).await.expect("allowed");
    ruled.chief.acquire(ask("jobs", "secret/1")).await.expect("allowed");
    let viewer = &ruled.viewer;
    assert_eq!(
        viewer.inspect("jobs", "reports/1").await.expect("allowed").holder_count,
        1
    );
    watch(viewer, "team-a", "reports/1").await.expect("allowed");
    check(viewer, "jobs", "reports/1").await.expect("allowed");
    assert_eq!(list(viewer, "jobs", "reports/").await.expect("allowed"), ["reports/1"]);
    denied(viewer.inspect("jobs", "secret/1").await, "lock", "read", "jobs");
    denied(watch(viewer, "jobs", "secret/1").await, "lock", "read", "jobs");
    denied(check(viewer, "jobs", "secret/1").await, "lock", "read", "jobs");
    for prefix in ["", "r", "reports", "secret/"] {
        denied(list(viewer, "jobs", prefix).await, "lock", "read", "jobs");
    }
    denied(list(viewer, "other", "reports/").await, "namespace", "read", "other");
    denied(ruled.worker.inspect("jobs", "reports/1").await, "verb", "read", "jobs");
    assert_eq!(list(&ruled.chief, "jobs", "").await.expect("allowed").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verb_admin_takes_locks_away_where_it_is_allowed() {
    let ruled = Ruled::start().await;
    let lease = ruled.chief.acquire(ask("jobs", "reports/1")).await.expect("allowed");
    let other = ruled.chief.acquire(ask("jobs", "mail/1")).await.expect("allowed");
    for caller in [&ruled.worker, &ruled.viewer] {
        denied(
            force(caller, "reports/1", lease.fencing_token).await,
            "verb",
            "admin",
            "jobs",
        );
    }
    denied(
        force(&ruled.operator, "mail/1", other.fencing_token).await,
        "lock",
        "admin",
        "jobs",
    );
    force(&ruled.operator, "reports/1", lease.fencing_token)
        .await
        .expect("allowed");
    assert_eq!(
        ruled
            .chief
            .inspect("jobs", "mail/1")
            .await
            .expect("allowed")
            .holder_count,
        1
    );
    // Admit is about all locks of a namespace.
    denied(admit(&ruled.operator).await, "lock", "admin", "jobs");
    let answered = admit(&ruled.chief).await.expect_err("this store has no quarantine");
    assert_eq!(reason(&answered), "UNSUPPORTED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_sees_the_namespaces_in_which_it_may_do_something() {
    let ruled = Ruled::start().await;
    assert_eq!(namespaces(&ruled.worker).await.expect("some"), ["jobs"]);
    assert_eq!(namespaces(&ruled.viewer).await.expect("some"), ["jobs", "team-a"]);
    assert_eq!(
        namespaces(&ruled.chief).await.expect("all"),
        ["jobs", "other", "team-a"]
    );
}

// G151
#[tokio::test(flavor = "multi_thread")]
async fn a_denial_does_not_tell_what_there_is() {
    let ruled = Ruled::start().await;
    ruled.chief.acquire(ask("jobs", "secret/held")).await.expect("allowed");
    let told = async |namespace: &str, name: &str| {
        let status = ruled.viewer.inspect(namespace, name).await.expect_err("denied");
        let metadata = ["missing", "verb"].map(|key| detail(&status, key));
        (
            status.code(),
            metadata,
            status.message().replace(namespace, "NAMESPACE"),
        )
    };
    assert_eq!(told("jobs", "secret/held").await, told("jobs", "secret/free").await);
    assert_eq!(told("other", "a").await, told("nowhere", "a").await);
    // Only what is allowed is looked up.
    let unknown = ruled.chief.inspect("nowhere", "a").await.expect_err("there is none");
    assert_eq!(reason(&unknown), "NAMESPACE_NOT_FOUND");
    let bad = ruled
        .viewer
        .inspect("", "")
        .await
        .expect_err("no namespace has this name");
    assert_eq!(reason(&bad), "INVALID_FIELD");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_rules_count_from_the_next_call_on() {
    let ruled = Ruled::start().await;
    let lease = ruled.worker.acquire(ask("jobs", "mail/1")).await.expect("allowed");
    let fewer = PolicySettings {
        rules: Rules::default(),
        ..settings()
    };
    let policy = Policy::open(&fewer).expect("a policy");
    ruled.fixture.access.auth.replace(Some(policy));
    denied(ruled.worker.release(&lease).await, "namespace", "acquire", "jobs");
    denied(namespaces(&ruled.chief).await, "namespace", "", "");
    let policy = Policy::open(&settings()).expect("a policy");
    ruled.fixture.access.auth.replace(Some(policy));
    ruled.worker.release(&lease).await.expect("allowed again");
}

async fn watched(caller: &Caller, namespace: &str) -> Streaming<HealthCheckResponse> {
    let mut health = HealthClient::new(caller.channel.clone());
    let service = format!("namespace/{namespace}");
    let statuses = health.watch(caller.request(HealthCheckRequest { service })).await;
    statuses.expect("a stream").into_inner()
}

async fn next(statuses: &mut Streaming<HealthCheckResponse>) -> ServingStatus {
    let next = tokio::time::timeout(PATIENCE, statuses.message()).await;
    let next = next.expect("a status in time").expect("no error");
    next.expect("no end").status()
}

// G151
#[tokio::test(flavor = "multi_thread")]
async fn the_health_of_a_namespace_is_for_those_whom_a_rule_opens_it() {
    let ruled = Ruled::start().await;
    let nobody = ruled.fixture.caller(None).await;
    let wrong = nobody.showing("wrong");
    for (caller, namespace, is_told) in [
        (&nobody, "jobs", false),
        (&nobody, "none", false),
        (&wrong, "jobs", false),
        (&ruled.worker, "jobs", true),
        (&ruled.worker, "other", false),
        (&ruled.worker, "none", false),
        (&ruled.viewer, "team-a", true),
        (&ruled.chief, "other", true),
        (&ruled.chief, "none", false),
    ] {
        let mut health = HealthClient::new(caller.channel.clone());
        let service = format!("namespace/{namespace}");
        let answer = health.check(caller.request(HealthCheckRequest { service })).await;
        let status = answer.map(|answer| answer.into_inner().status());
        let expected = if is_told {
            Ok(ServingStatus::Serving)
        } else {
            Err(Code::NotFound)
        };
        assert_eq!(status.map_err(|status| status.code()), expected, "{namespace}");
        let expected = expected.unwrap_or(ServingStatus::ServiceUnknown);
        assert_eq!(
            next(&mut watched(caller, namespace).await).await,
            expected,
            "{namespace}"
        );
    }
    // A rule for everybody is for everybody who is somebody, and who watches hears of a change.
    let mut of_nobody = watched(&nobody, "other").await;
    let mut of_worker = watched(&ruled.worker, "other").await;
    let mut of_viewer = watched(&ruled.viewer, "jobs").await;
    assert_eq!(next(&mut of_nobody).await, ServingStatus::ServiceUnknown);
    assert_eq!(next(&mut of_worker).await, ServingStatus::ServiceUnknown);
    assert_eq!(next(&mut of_viewer).await, ServingStatus::Serving);
    let changed = PolicySettings {
        rules: Rules::new(vec![rule(&["*"], &["other"], &[""], &[Verb::Read])]),
        ..settings()
    };
    let policy = Policy::open(&changed).expect("a policy");
    ruled.fixture.access.auth.replace(Some(policy));
    assert_eq!(next(&mut of_worker).await, ServingStatus::Serving);
    assert_eq!(next(&mut of_viewer).await, ServingStatus::ServiceUnknown);
    let mut health = HealthClient::new(nobody.channel.clone());
    let service = "namespace/other".to_owned();
    let status = health.check(HealthCheckRequest { service }).await;
    assert_eq!(status.expect_err("nobody is told").code(), Code::NotFound);
    let whole = health.check(HealthCheckRequest { service: String::new() }).await;
    whole.expect("the server as a whole is for everybody");
}
