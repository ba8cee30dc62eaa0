use super::*;

const TTL: Duration = Duration::from_secs(30);

fn at(millis: u64) -> Duration {
    Duration::from_secs(1000) + Duration::from_millis(millis)
}

/// The ends of the terms that guards show, or their loss.
type Shown = watch::Receiver<LeaseState>;

struct Fixture {
    leases: Leases,
    last: u64,
}

impl Fixture {
    fn new() -> Self {
        let (leases, last) = (Leases::default(), 0);
        Self { leases, last }
    }

    fn add(&mut self, lease_id: &str, ttl: Duration, now: Duration) -> Shown {
        self.last += 1;
        let term = LeaseTerm::granted(now, ttl);
        let (state, shown) = watch::channel(LeaseState::Held(term));
        self.leases
            .add(Arc::from(lease_id), self.last, term, Arc::new(state), now);
        shown
    }

    /// Sends a beat that is answered at once.
    fn beat(&mut self, ttl: Duration, now: Duration) {
        let (number, ids) = self.leases.begin_beat(now);
        self.leases.kept(number, ids.iter().map(|_| ttl), now);
    }

    fn calls(&mut self, now: Duration) -> Vec<String> {
        let due = self.leases.begin_calls(now);
        due.iter().map(|renewal| renewal.lease_id.as_ref().to_owned()).collect()
    }
}

fn end(shown: &Shown) -> Option<Duration> {
    match &*shown.borrow() {
        LeaseState::Held(term) => Some(term.end),
        LeaseState::Lost(_) => None,
    }
}

#[test]
fn a_lease_is_named_after_half_a_second_and_renewed_when_the_server_asks() {
    let mut fixture = Fixture::new();
    let shown = fixture.add("a", TTL, at(0));
    assert_eq!(fixture.leases.beat_due(), Some(at(500)));
    let (number, ids) = fixture.leases.begin_beat(at(510));
    assert_eq!(ids, ["a"]);
    assert_eq!(fixture.leases.beat_due(), None, "one beat at a time");
    fixture.leases.kept(number + 1, [TTL], at(520));
    assert_eq!(end(&shown), Some(at(0) + TTL), "that answers another beat");
    fixture.leases.kept(number, [TTL], at(520));
    assert_eq!(end(&shown), Some(at(510) + TTL), "it counts from the sending");
    // A server that does not ask is not waited for.
    assert_eq!(fixture.leases.beat_due(), Some(at(510) + Duration::from_millis(11_250)));
    fixture.leases.asked();
    assert!(fixture.leases.beat_due() < Some(at(520)));
    let (number, _) = fixture.leases.begin_beat(at(10_500));
    // The server asked before it read the beat.
    fixture.leases.asked();
    fixture.leases.kept(number, [TTL], at(10_510));
    assert!(fixture.leases.beat_due() > Some(at(10_600)), "one beat for each ask");
}

#[test]
fn a_lease_of_two_guards_is_named_once_and_renewed_for_both() {
    let mut fixture = Fixture::new();
    let shown = [("a", 0), ("b", 0), ("a", 100)].map(|(id, since)| fixture.add(id, TTL, at(since)));
    let (number, ids) = fixture.leases.begin_beat(at(600));
    assert_eq!(ids, ["a", "b"]);
    fixture.leases.kept(number, [TTL, Duration::ZERO], at(600));
    let ends = shown.each_ref().map(|shown| end(shown).expect("held"));
    assert_eq!(ends, [at(600) + TTL, at(0) + TTL, at(600) + TTL]);
    fixture.leases.lost("a", "forced", at(700));
    assert_eq!(shown.each_ref().map(|shown| end(shown).is_some()), [false, true, false]);
}

#[test]
fn a_lease_whose_time_has_passed_does_not_come_back() {
    let mut fixture = Fixture::new();
    let ttl = Duration::from_secs(2);
    let shown = fixture.add("a", ttl, at(0));
    let (number, _) = fixture.leases.begin_beat(at(1900));
    fixture.leases.kept(number, [ttl], at(2000));
    assert_eq!(end(&shown), Some(at(2000)), "its guard has counted it as lost");
    fixture.leases.expire(at(2000));
    assert_eq!(*shown.borrow(), LeaseState::Lost(Loss::Unrenewed));
    assert!(fixture.leases.is_empty());
}

#[test]
fn a_removed_lease_is_neither_named_nor_renewed() {
    let mut fixture = Fixture::new();
    let shown = [fixture.add("a", TTL, at(0)), fixture.add("b", TTL, at(0))];
    let (number, _) = fixture.leases.begin_beat(at(600));
    fixture.leases.remove(&Arc::from("a"), 1);
    fixture.leases.kept(number, [TTL, TTL], at(600));
    assert_eq!(shown.each_ref().map(end), [Some(at(0) + TTL), Some(at(600) + TTL)]);
    assert_eq!(fixture.leases.begin_beat(at(700)).1, ["b"]);
}

#[test]
fn new_leases_cause_few_beats() {
    let mut fixture = Fixture::new();
    let ttl = Duration::from_secs(300);
    for number in 0..500 {
        drop(fixture.add(&number.to_string(), ttl, at(0)));
    }
    fixture.beat(ttl, at(500));
    // One lease comes each 10 ms for 20 s, and is held for a second. Each beat renews all of them.
    let mut renewals = 0;
    for tick in 0..2_000 {
        let now = at(500 + 10 * tick);
        drop(fixture.add(&format!("new-{tick}"), ttl, now));
        if let Some(over) = tick.checked_sub(100) {
            fixture.leases.remove(&Arc::from(format!("new-{over}")), over + 501);
        }
        if fixture.leases.beat_due().is_some_and(|due| due <= now) {
            renewals += fixture.leases.guards.len();
            fixture.beat(ttl, now);
        }
    }
    assert!(renewals <= 20 * 100, "{renewals} renewals in 20 s");
    assert!(renewals > 600, "they are named");
}

#[test]
fn a_lease_that_no_beat_renews_in_time_is_renewed_by_a_call() {
    let mut fixture = Fixture::new();
    let shown = fixture.add("a", TTL, at(0));
    fixture.beat(TTL, at(500));
    // A beat is not answered, and a twelfth of the TTL is waited for it.
    fixture.leases.begin_beat(at(10_500));
    assert_eq!(fixture.leases.call_due(), Some(at(13_000)));
    assert!(fixture.calls(at(12_990)).is_empty());
    assert_eq!(fixture.calls(at(13_000)), ["a"]);
    assert!(fixture.calls(at(13_000)).is_empty(), "one call at a time");
    fixture.leases.call_failed(&Arc::from("a"), at(13_500));
    assert_eq!(
        fixture.leases.call_due(),
        Some(at(13_550)),
        "it is repeated after a pause"
    );
    assert_eq!(fixture.calls(at(13_550)), ["a"]);
    fixture
        .leases
        .call_renewed(&Arc::from("a"), at(13_550), TTL, at(13_560));
    assert_eq!(end(&shown), Some(at(13_550) + TTL));
}

#[test]
fn without_a_stream_that_works_a_call_is_due_after_a_third_of_the_ttl() {
    let mut fixture = Fixture::new();
    let _shown = fixture.add("a", TTL, at(0));
    assert_eq!(fixture.leases.call_due(), Some(at(12_500)));
    fixture.leases.begin_beat(at(500));
    assert!(!fixture.leases.stream_ended());
    assert_eq!(fixture.leases.call_due(), Some(at(10_000)));
    // The next stream names the leases again, and works.
    fixture.beat(TTL, at(2_000));
    assert_eq!(fixture.leases.call_due(), Some(at(14_500)));
    assert!(fixture.leases.stream_ended());
}

#[test]
fn a_stream_that_broke_names_its_leases_again_at_once() {
    let mut fixture = Fixture::new();
    let ttl = Duration::from_secs(3600);
    let _shown = fixture.add("a", ttl, at(0));
    fixture.beat(ttl, at(500));
    fixture.leases.stream_ended();
    assert!(
        fixture.leases.beat_due() <= Some(at(1_500)),
        "{:?}",
        fixture.leases.beat_due()
    );
}

#[test]
fn a_beat_is_answered_within_half_of_the_shortest_ttl_or_the_stream_hangs() {
    let mut fixture = Fixture::new();
    let _shown = [fixture.add("a", TTL, at(0)), fixture.add("b", TTL / 3, at(0))];
    let (number, _) = fixture.leases.begin_beat(at(500));
    assert_eq!(fixture.leases.answer_by(), Some(at(5_500)));
    fixture.leases.kept(number, [TTL, TTL / 3], at(600));
    assert_eq!(fixture.leases.answer_by(), None);
}

#[test]
fn a_guard_that_is_added_after_the_end_of_its_lease_is_told() {
    let mut fixture = Fixture::new();
    let _first = fixture.add("a", TTL, at(0));
    fixture.leases.lost("a", "forced", at(100));
    let late = fixture.add("a", TTL, at(200));
    let forced = Loss::Gone { cause: "forced".into() };
    assert_eq!(*late.borrow(), LeaseState::Lost(forced));
    assert!(fixture.leases.is_empty());
    // It is forgotten when no term of the lease can last longer.
    fixture.leases.expire(at(100) + TTL);
    assert!(fixture.leases.gone.is_empty());
}

#[test]
fn a_renewal_without_time_is_a_failure() {
    let mut fixture = Fixture::new();
    let shown = fixture.add("a", TTL, at(0));
    assert_eq!(fixture.calls(at(12_500)), ["a"]);
    let sent = at(12_500);
    fixture.leases.call_renewed(&Arc::from("a"), sent, Duration::ZERO, sent);
    assert_eq!(end(&shown), Some(at(0) + TTL));
    assert!(
        fixture.leases.call_due() > Some(sent),
        "the next call comes after a pause"
    );
}
