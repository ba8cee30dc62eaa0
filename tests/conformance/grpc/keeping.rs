//! KeepAlive: a stream that keeps all leases of a client.

use std::time::{Duration, Instant};

use fencepost::api::Settings;
use fencepost::api::proto::keep_alive_response::{Event, Kept, Lost};
use fencepost::api::proto::{AcquireRequest, KeepAliveRequest, KeepAliveResponse, Lease};
use fencepost::backend::ReleaseTarget;
use fencepost::name::LeaseKey;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use tonic::Code::{InvalidArgument, ResourceExhausted, Unavailable};
use tonic::{Status, Streaming};

use super::refused::refused;
use super::service::{LOCK, Service, acquire, check_token, living, time};
use crate::fixture::{Fixture, NAMESPACE, lock};

/// Longer than a message of the server takes that comes at once.
const SOON: Duration = Duration::from_secs(5);

/// A client that keeps leases.
struct Keeper {
    beats: UnboundedSender<KeepAliveRequest>,
    events: Streaming<KeepAliveResponse>,
}

impl Keeper {
    /// Opens a stream, on which the server asks at once.
    async fn open(service: &Service) -> Self {
        let (beats, sent) = unbounded();
        let events = service.locks().keep_alive(sent).await;
        let events = events.expect("a stream").into_inner();
        let mut keeper = Self { beats, events };
        assert!(matches!(keeper.event().await, Event::Ask(_)));
        keeper
    }

    fn beat(&self, beat: u64, leases: &[&Lease]) {
        self.beat_of(beat, leases.iter().map(|lease| lease.lease_id.clone()).collect());
    }

    fn beat_of(&self, beat: u64, lease_ids: Vec<String>) {
        let sent = self.beats.unbounded_send(KeepAliveRequest { beat, lease_ids });
        sent.expect("the stream is open");
    }

    async fn try_event(&mut self) -> Result<Option<KeepAliveResponse>, Status> {
        let event = tokio::time::timeout(Duration::from_secs(30), self.events.message()).await;
        event.expect("an event in time")
    }

    async fn event(&mut self) -> Event {
        let event = self.try_event().await.expect("no error").expect("not the end");
        event.event.expect("one of the three")
    }

    async fn kept(&mut self) -> Kept {
        match self.event().await {
            Event::Kept(kept) => kept,
            other => panic!("{other:?}"),
        }
    }

    /// The next loss within this time, whatever the server asks meanwhile.
    async fn lost_within(&mut self, limit: Duration) -> Option<Lost> {
        let lost = async {
            loop {
                if let Event::Lost(lost) = self.event().await {
                    return lost;
                }
            }
        };
        tokio::time::timeout(limit, lost).await.ok()
    }

    async fn lost(&mut self) -> Lost {
        match self.event().await {
            Event::Lost(lost) => lost,
            other => panic!("{other:?}"),
        }
    }
}

fn ttls(kept: &Kept) -> Vec<Duration> {
    kept.ttls.iter().map(|ttl| time(Some(*ttl))).collect()
}

fn on(name: &str, ask: AcquireRequest) -> AcquireRequest {
    AcquireRequest {
        name: name.into(),
        ..ask
    }
}

// G41
pub async fn a_client_that_answers_keeps_all_its_leases(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let short = fixture.ample();
    let leases = [
        service.acquire(on("b", acquire("a"))).await,
        service.acquire(living(short, acquire("a"))).await,
    ];
    let mut keeper = Keeper::open(&service).await;
    let (began, mut beat) = (Instant::now(), 0);
    let lasts = 2 * short;
    while beat == 0 || (!fixture.pace.virtual_time && began.elapsed() < lasts) || beat < 6 {
        beat += 1;
        keeper.beat(beat, &[&leases[0], &leases[1]]);
        let kept = keeper.kept().await;
        assert_eq!(kept.beat, beat);
        let ttls = ttls(&kept);
        assert!(ttls.len() == 2 && ttls[0] > ttls[1] && ttls[1] >= short, "{kept:?}");
        // The next beat is due after a third of the shorter TTL.
        assert!(matches!(keeper.event().await, Event::Ask(_)));
    }
    assert_eq!(
        service.inspect().await.holders[0].fencing_token,
        leases[1].fencing_token
    );
}

// G39
pub async fn a_forced_lease_is_told_lost_at_once(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let lease = service.acquire(acquire("a")).await;
    let mut keeper = Keeper::open(&service).await;
    keeper.beat(1, &[&lease]);
    keeper.kept().await;
    let began = Instant::now();
    service.try_force(lease.fencing_token).await.expect("forced");
    let lost = keeper.lost().await;
    assert_eq!((lost.reason.as_str(), lost.cause.as_str()), ("LEASE_LOST", "forced"));
    assert_eq!(lost.lease_id, lease.lease_id);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

// G39
pub async fn a_lease_that_another_call_released_is_told_lost_at_once(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let lease = service.acquire(acquire("a")).await;
    let mut keepers = [Keeper::open(&service).await, Keeper::open(&service).await];
    for keeper in &mut keepers {
        keeper.beat(1, &[&lease]);
        keeper.kept().await;
    }
    service.release(&lease).await;
    for keeper in &mut keepers {
        assert_eq!(keeper.lost().await.cause, "released");
    }
}

// G39
pub async fn a_lease_that_ended_at_another_replica_is_told_with_the_next_beat(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let lease = service.acquire(acquire("a")).await;
    let mut keeper = Keeper::open(&service).await;
    keeper.beat(1, &[&lease]);
    keeper.kept().await;
    let key = LeaseKey::parse(&lease.lease_id).expect("a lease id");
    let target = ReleaseTarget::Hold(&key);
    let released = fixture.second.release(&lock(LOCK), target, None).await;
    released.expect("released");
    keeper.beat(2, &[&lease]);
    let lost = keeper.lost().await;
    assert_eq!(lost.reason, "LEASE_LOST");
    let kept = keeper.kept().await;
    assert_eq!((kept.beat, ttls(&kept)), (2, vec![Duration::ZERO]));
}

// G39
pub async fn a_lease_that_was_forced_at_another_replica_is_told_at_once_where_the_store_tells(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let is_told = fixture.second.forced().is_some();
    let mut keeper = Keeper::open(&service).await;
    // The first ones may come before the server has subscribed.
    for beat in 1..=5 {
        let lease = service.acquire(acquire("a")).await;
        keeper.beat(beat, &[&lease]);
        while !matches!(keeper.event().await, Event::Kept(kept) if kept.beat == beat) {}
        let key = LeaseKey::parse(&lease.lease_id).expect("a lease id");
        let forced = fixture
            .second
            .release(&lock(LOCK), ReleaseTarget::Forced(key.token), None)
            .await;
        forced.expect("forced");
        if is_told && let Some(lost) = keeper.lost_within(SOON).await {
            assert_eq!((lost.lease_id, lost.cause.as_str()), (lease.lease_id, "forced"));
            return;
        }
        if !is_told {
            keeper.beat(beat + 1, &[&lease]);
            let lost = keeper.lost_within(SOON).await.expect("the next beat tells");
            assert_eq!(lost.lease_id, lease.lease_id);
            return;
        }
    }
    panic!("it was never told");
}

pub async fn a_lease_that_ran_out_is_told_lost(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let lease = service.acquire(living(fixture.short(), acquire("a"))).await;
    let mut keeper = Keeper::open(&service).await;
    keeper.beat(1, &[&lease]);
    keeper.kept().await;
    assert!(matches!(keeper.event().await, Event::Ask(_)));
    // The client does not answer.
    let lost = keeper.lost().await;
    assert_eq!((lost.lease_id, lost.reason.as_str()), (lease.lease_id, "LEASE_LOST"));
}

pub async fn a_lease_that_another_client_renews_is_not_told_lost(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let lease = service.acquire(living(fixture.ample(), acquire("a"))).await;
    let mut keeper = Keeper::open(&service).await;
    keeper.beat(1, &[&lease]);
    keeper.kept().await;
    assert!(matches!(keeper.event().await, Event::Ask(_)));
    let long = Duration::from_secs(60);
    service.try_renew(&lease, Some(long)).await.expect("renewed");
    fixture.outlive(fixture.ample()).await;
    // A new beat is the next thing that is answered.
    keeper.beat(2, &[&lease]);
    assert_eq!(keeper.kept().await.beat, 2);
}

pub async fn a_lease_that_cannot_be_kept_is_told_with_its_reason(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let lease = service.acquire(acquire("a")).await;
    let mut elsewhere = LeaseKey::parse(&lease.lease_id).expect("a lease id");
    elsewhere.lock.namespace = crate::fixture::namespace("nowhere");
    let ids = vec!["garbage".into(), lease.lease_id.clone(), elsewhere.to_lease_id()];
    let mut keeper = Keeper::open(&service).await;
    keeper.beat_of(1, ids.clone());
    for (id, reason) in [(0, "INVALID_FIELD"), (2, "NAMESPACE_NOT_FOUND")] {
        let lost = keeper.lost().await;
        assert_eq!((lost.lease_id, lost.reason.as_str()), (ids[id].clone(), reason));
    }
    let kept = keeper.kept().await;
    let kept: Vec<bool> = ttls(&kept).iter().map(|ttl| !ttl.is_zero()).collect();
    assert_eq!(kept, [false, true, false]);
}

pub async fn a_client_without_leases_is_asked_again(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut keeper = Keeper::open(&service).await;
    keeper.beat(1, &[]);
    assert_eq!(keeper.kept().await, Kept { beat: 1, ttls: vec![] });
    assert!(matches!(keeper.event().await, Event::Ask(_)));
}

// G44
pub async fn the_end_of_the_stream_gives_nothing_back(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let lease = service.acquire(acquire("a")).await;
    let mut keeper = Keeper::open(&service).await;
    keeper.beat(1, &[&lease]);
    keeper.kept().await;
    // A client that has no more beats gets the answers that it waits for.
    keeper.beat(2, &[&lease]);
    let Keeper { beats, events } = keeper;
    drop(beats);
    let mut rest = events;
    let kept = rest.message().await.expect("no error").expect("the answer");
    assert!(
        matches!(kept.event, Some(Event::Kept(Kept { beat: 2, .. }))),
        "{kept:?}"
    );
    assert!(rest.message().await.expect("no error").is_none());
    let checked = service.locks().check_token(check_token(lease.fencing_token)).await;
    assert!(checked.expect("an answer").into_inner().held);
}

pub async fn a_beat_that_is_too_large_is_refused_and_the_server_lives_on(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(acquire("a")).await;
    let mut keeper = Keeper::open(&service).await;
    keeper.beat_of(1, vec!["x".repeat(2 << 20)]);
    let refused = refused(keeper.try_event().await, InvalidArgument, "INVALID_FIELD");
    assert_eq!(refused.fields, ["request"]);
    assert_eq!(service.look_at(NAMESPACE, LOCK).await.holder_count, 1);
}

pub async fn a_beat_with_too_many_leases_or_with_one_twice_is_refused(fixture: &Fixture) {
    let settings = Settings {
        max_kept_leases: 3,
        identity_share: 100,
        peer_share: 100,
        ..Settings::default()
    };
    let service = Service::start_with(fixture, settings).await;
    let lease = service.acquire(acquire("a")).await;
    let numbered = |count: usize| (0..count).map(|number| number.to_string()).collect();
    for ids in [numbered(1_001), vec![lease.lease_id.clone(); 2]] {
        let mut keeper = Keeper::open(&service).await;
        keeper.beat_of(1, ids);
        let refused = refused(keeper.try_event().await, InvalidArgument, "INVALID_FIELD");
        assert_eq!(refused.fields, ["lease_ids"]);
    }
    // All streams together keep so many. A beat replaces the leases of the one before.
    let mut first = Keeper::open(&service).await;
    for ids in [numbered(3), numbered(2)] {
        let count = ids.len();
        first.beat_of(1, ids);
        for _ in 0..count {
            first.lost().await;
        }
        first.kept().await;
    }
    let mut second = Keeper::open(&service).await;
    second.beat_of(1, numbered(2));
    refused(second.try_event().await, ResourceExhausted, "OVERLOADED");
    drop(first);
    let room = async {
        loop {
            let mut keeper = Keeper::open(&service).await;
            keeper.beat_of(1, numbered(3));
            if keeper.try_event().await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(SOON, room).await.expect("there is room again");
}

pub async fn a_stop_ends_the_stream_at_once(fixture: &Fixture) {
    let mut service = Service::start(fixture).await;
    let lease = service.acquire(acquire("a")).await;
    let mut keeper = Keeper::open(&service).await;
    keeper.beat(1, &[&lease]);
    keeper.kept().await;
    let began = Instant::now();
    service.tell_to_stop();
    refused(keeper.try_event().await, Unavailable, "DRAINING");
    service.stopped().await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}
