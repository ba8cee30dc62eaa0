//! Elections over the API.

use std::time::Duration;

use fencepost::api::proto::election_service_client::ElectionServiceClient;
use fencepost::api::proto::{
    CampaignRequest, GetLeaderRequest, Leader, Lease, ObserveRequest, ObserveResponse, ProclaimRequest, ResignRequest,
};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::refused::{invalid, lost, refused};
use super::service::{DEFAULT_TTL, LOCK, Service, acquire, list_locks, time};
use crate::asks::wire;
use crate::fixture::{Fixture, NAMESPACE};

/// How long a message of a stream may take.
const PATIENCE: Duration = Duration::from_secs(20);

fn elections(service: &Service) -> ElectionServiceClient<Channel> {
    ElectionServiceClient::new(service.channel())
}

fn campaign(candidate: &str, value: &str) -> CampaignRequest {
    CampaignRequest {
        namespace: NAMESPACE.into(),
        election: LOCK.into(),
        candidate: candidate.into(),
        value: value.into(),
        ..CampaignRequest::default()
    }
}

async fn try_lead(service: &Service, ask: CampaignRequest) -> Result<Lease, Status> {
    let answer = elections(service).campaign(ask).await?;
    Ok(answer.into_inner().leadership.expect("a leadership"))
}

async fn lead(service: &Service, candidate: &str, value: &str) -> Lease {
    try_lead(service, campaign(candidate, value))
        .await
        .expect("nobody leads")
}

async fn proclaim(service: &Service, lease: &Lease, value: &str) -> Result<(), Status> {
    let ask = ProclaimRequest {
        lease_id: lease.lease_id.clone(),
        value: value.into(),
    };
    elections(service).proclaim(ask).await.map(drop)
}

async fn resign(service: &Service, lease: &Lease) -> Result<(), Status> {
    let lease_id = lease.lease_id.clone();
    elections(service).resign(ResignRequest { lease_id }).await.map(drop)
}

async fn leader(service: &Service) -> Option<Leader> {
    let ask = GetLeaderRequest {
        namespace: NAMESPACE.into(),
        election: LOCK.into(),
    };
    let answer = elections(service).get_leader(ask).await.expect("an answer");
    answer.into_inner().leader
}

/// Whether the list of locks shows it as an election.
async fn is_listed_as_election(service: &Service) -> bool {
    let list = service.locks().list_locks(list_locks("", 0, "")).await;
    list.expect("a list").into_inner().locks[0].is_election
}

/// The value that is shown now.
async fn value(service: &Service) -> Option<String> {
    leader(service).await.map(|leader| leader.value)
}

/// An Observe call.
struct Observer(Streaming<ObserveResponse>);

impl Observer {
    async fn begin(service: &Service) -> Self {
        let ask = ObserveRequest {
            namespace: NAMESPACE.into(),
            election: LOCK.into(),
        };
        let stream = elections(service).observe(ask).await.expect("a stream");
        Self(stream.into_inner())
    }

    async fn next(&mut self) -> Option<Leader> {
        let message = tokio::time::timeout(PATIENCE, self.0.message()).await;
        let message = message.expect("a message comes").expect("no error");
        message.expect("the stream goes on").leader
    }

    /// Reads until the leader with this token is shown, and no older one after a newer one.
    async fn until(&mut self, token: u64) -> Leader {
        let mut last = 0;
        loop {
            if let Some(leader) = self.next().await {
                assert!(leader.fencing_token >= last, "{leader:?} after {last}");
                last = leader.fencing_token;
                if last == token {
                    return leader;
                }
            }
        }
    }
}

pub async fn a_candidate_that_fits_leads_and_is_shown(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    assert_eq!(leader(&service).await, None);
    let a = lead(&service, "a", "10.0.0.1:80").await;
    assert_eq!((a.owner.as_str(), a.name.as_str(), a.holds), ("a", LOCK, 1));
    assert!(time(a.ttl) >= DEFAULT_TTL - fixture.short());
    let shown = leader(&service).await.expect("a leader");
    assert_eq!(
        (shown.candidate.as_str(), shown.value.as_str(), shown.fencing_token),
        ("a", "10.0.0.1:80", a.fencing_token)
    );
    assert!(shown.since.is_some_and(|since| since.seconds > 1_000_000_000));
    assert!(time(shown.remaining_ttl) <= time(a.ttl));
    let held = refused(try_lead(&service, campaign("b", "")).await, Code::Aborted, "LOCK_HELD");
    assert_eq!(held.says("owner"), "a");
    resign(&service, &a).await.expect("resigned");
    resign(&service, &a).await.expect("resigned before");
    assert_eq!(leader(&service).await, None);
}

// G48
pub async fn an_election_is_the_lock_of_its_name(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = lead(&service, "a", "v").await;
    let state = service.inspect().await;
    let holder = &state.holders[0];
    assert_eq!((holder.owner.as_str(), holder.metadata["value"].as_str()), ("a", "v"));
    assert!(is_listed_as_election(&service).await);
    refused(service.try_acquire(acquire("b")).await, Code::Aborted, "LOCK_HELD");
    service.try_renew(&a, None).await.expect("renewed");
    service.try_force(a.fencing_token).await.expect("deposed");
    lost(resign(&service, &a).await, "forced");
    let b = service.acquire(acquire("b")).await;
    let shown = leader(&service).await.expect("a leader");
    assert_eq!((shown.fencing_token, shown.value.as_str()), (b.fencing_token, ""));
    assert!(!is_listed_as_election(&service).await);
}

pub async fn the_next_candidate_leads_when_the_leader_resigns(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = lead(&service, "a", "first").await;
    let mut elections = elections(&service);
    let waits = CampaignRequest {
        wait: Some(wire(Duration::from_secs(60))),
        ..campaign("b", "second")
    };
    let next = tokio::spawn(async move { elections.campaign(waits).await });
    service.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 1).await;
    resign(&service, &a).await.expect("resigned");
    let b = next.await.expect("no panic").expect("it leads").into_inner();
    let b = b.leadership.expect("a leadership");
    assert!(b.fencing_token > a.fencing_token);
    assert_eq!(value(&service).await.as_deref(), Some("second"));
}

pub async fn a_retried_campaign_gets_the_same_leadership(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let ask = || CampaignRequest {
        request_id: "r".into(),
        ..campaign("a", "v")
    };
    let first = try_lead(&service, ask()).await.expect("it leads");
    let again = try_lead(&service, ask()).await.expect("it leads");
    assert_eq!(
        (first.lease_id, first.fencing_token),
        (again.lease_id, again.fencing_token)
    );
}

// G211
pub async fn a_kept_election_has_no_leader(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut seen = Observer::begin(&service).await;
    assert_eq!(seen.next().await, None);
    let a = lead(&service, "a", "v").await;
    assert_eq!(seen.next().await.expect("a leader").fencing_token, a.fencing_token);
    service.release_keeping(&a, DEFAULT_TTL).await.expect("released");
    assert_eq!(seen.next().await, None);
    assert_eq!(leader(&service).await, None);
    let b = try_lead(&service, campaign("b", "w")).await;
    refused(b, Code::Aborted, "LOCK_HELD");
}

// G35
pub async fn a_proclamation_replaces_the_value_or_is_unsupported(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = lead(&service, "a", "old").await;
    let answer = proclaim(&service, &a, "new").await;
    let shown = leader(&service).await.expect("a leader");
    assert_eq!(shown.fencing_token, a.fencing_token);
    match fixture.capabilities().updates_metadata {
        true => assert_eq!((answer.is_ok(), shown.value.as_str()), (true, "new")),
        false => {
            refused(answer, Code::FailedPrecondition, "UNSUPPORTED");
            assert_eq!(shown.value, "old");
        }
    }
}

// G35
pub async fn a_proclamation_of_a_leader_that_was_deposed_changes_nothing(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = lead(&service, "a", "a").await;
    service.try_force(a.fencing_token).await.expect("deposed");
    lost(proclaim(&service, &a, "late").await, "forced");
    lead(&service, "b", "b").await;
    lost(proclaim(&service, &a, "late").await, "forced");
    assert_eq!(value(&service).await.as_deref(), Some("b"));
}

pub async fn the_longest_value_is_proclaimed_and_shown(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let (first, second) = ("ü".repeat(2048), "x".repeat(4096));
    let a = lead(&service, "a", &first).await;
    assert_eq!(value(&service).await, Some(first));
    proclaim(&service, &a, &second).await.expect("proclaimed");
    assert_eq!(value(&service).await, Some(second));
}

// G48
pub async fn an_observer_sees_the_leader_and_then_each_change(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut observer = Observer::begin(&service).await;
    assert_eq!(observer.next().await, None, "nobody leads at first");
    let a = lead(&service, "a", "first").await;
    let seen = observer.next().await.expect("a leader");
    assert_eq!((seen.fencing_token, seen.value.as_str()), (a.fencing_token, "first"));
    resign(&service, &a).await.expect("resigned");
    assert_eq!(observer.next().await, None, "it resigned");
    let b = lead(&service, "b", "second").await;
    assert_eq!(observer.next().await.expect("a leader").fencing_token, b.fencing_token);
    let mut late = Observer::begin(&service).await;
    assert_eq!(late.next().await.expect("a leader").fencing_token, b.fencing_token);
    service.try_force(b.fencing_token).await.expect("deposed");
    assert_eq!((observer.next().await, late.next().await), (None, None));
}

// G35
pub async fn an_observer_sees_each_proclamation(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut observer = Observer::begin(&service).await;
    assert_eq!(observer.next().await, None);
    let a = lead(&service, "a", "0").await;
    assert_eq!(observer.next().await.expect("a leader").value, "0");
    for value in ["1", "2", "3"] {
        proclaim(&service, &a, value).await.expect("proclaimed");
        service.try_renew(&a, None).await.expect("renewed");
        let seen = observer.next().await.expect("a leader");
        assert_eq!((seen.fencing_token, seen.value.as_str()), (a.fencing_token, value));
    }
}

// G48
pub async fn observers_never_see_an_older_leader_and_all_see_the_last(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let (observers, rounds) = if cfg!(feature = "soak") { (100, 50) } else { (8, 20) };
    let mut watchers = Vec::new();
    for _ in 0..observers {
        let mut observer = Observer::begin(&service).await;
        watchers.push(tokio::spawn(async move {
            let mut last = 0;
            loop {
                if let Some(leader) = observer.next().await {
                    assert!(leader.fencing_token >= last, "{leader:?} after {last}");
                    last = leader.fencing_token;
                    if leader.value == "the last" {
                        return last;
                    }
                }
            }
        }));
    }
    let mut last = 0;
    for round in 1..=rounds {
        let value = if round == rounds { "the last" } else { "another" };
        let leads = lead(&service, "a", value).await;
        assert!(leads.fencing_token > last);
        last = leads.fencing_token;
        match round {
            _ if round == rounds => {}
            _ if round % 2 == 0 => resign(&service, &leads).await.expect("resigned"),
            _ => service.try_force(last).await.expect("deposed"),
        }
    }
    for watcher in watchers {
        assert_eq!(watcher.await.expect("no panic"), last);
    }
}

// G48
pub async fn an_observer_that_reads_late_sees_the_last_leader(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut observer = Observer::begin(&service).await;
    let mut last = 0;
    for round in 0..40 {
        let leads = lead(&service, "a", &format!("{round}{}", "x".repeat(3000))).await;
        last = leads.fencing_token;
        if round < 39 {
            resign(&service, &leads).await.expect("resigned");
        }
    }
    assert!(observer.until(last).await.value.starts_with("39"));
}

pub async fn a_stop_ends_observers_at_once(fixture: &Fixture) {
    let mut service = Service::start(fixture).await;
    let mut observer = Observer::begin(&service).await;
    assert_eq!(observer.next().await, None);
    service.tell_to_stop();
    let ended = tokio::time::timeout(PATIENCE, observer.0.message()).await;
    refused(ended.expect("an end"), Code::Unavailable, "DRAINING");
    service.stopped().await;
}

pub async fn a_field_beyond_its_bounds_is_refused_by_its_name(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let with = |change: fn(&mut CampaignRequest)| {
        let mut ask = campaign("a", "v");
        change(&mut ask);
        ask
    };
    for (field, ask) in [
        ("election", with(|ask| ask.election.clear())),
        ("candidate", with(|ask| ask.candidate.clear())),
        ("value", with(|ask| ask.value = "x".repeat(4097))),
        ("ttl", with(|ask| ask.ttl = Some(wire(Duration::ZERO)))),
        (
            "wait",
            with(|ask| ask.wait = Some(prost_types::Duration { seconds: -1, nanos: 0 })),
        ),
        ("request_id", with(|ask| ask.request_id = "x".repeat(129))),
    ] {
        invalid(try_lead(&service, ask).await, field);
    }
    let a = lead(&service, "a", "v").await;
    invalid(proclaim(&service, &a, &"x".repeat(4097)).await, "value");
    let no_lease = Lease::default();
    invalid(proclaim(&service, &no_lease, "v").await, "lease_id");
    invalid(resign(&service, &no_lease).await, "lease_id");
    let ask = ObserveRequest {
        namespace: NAMESPACE.into(),
        election: "\u{7}".into(),
    };
    invalid(elections(&service).observe(ask).await.map(drop), "election");
    assert_eq!(value(&service).await.as_deref(), Some("v"));
}
