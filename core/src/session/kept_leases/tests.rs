use super::*;
use crate::claim::Cause;
use crate::name::InvalidField;

mod churn;
mod confirmed;
mod suspended;

const TTL: Duration = Duration::from_secs(30);

fn secret(number: u8) -> Secret {
    Secret::from_bytes([number; 16])
}

fn id(number: u8) -> String {
    format!("lease-{number}")
}

fn named(numbers: &[u8]) -> Vec<(String, Result<Secret, Error>)> {
    numbers
        .iter()
        .map(|number| (id(*number), Ok(secret(*number))))
        .collect()
}

fn gone(cause: Cause) -> Error {
    Error::LeaseLost { cause: Some(cause) }
}

fn lost(number: u8, cause: Cause) -> Message {
    Message::Lost {
        lease_id: id(number),
        error: gone(cause),
    }
}

fn kept(beat: u64, ttls: &[Duration]) -> Message {
    let ttls = ttls.to_vec();
    Message::Kept {
        beat,
        ttls,
        not_renewed: Vec::new(),
        new_ttls: Vec::new(),
    }
}

/// A moment of a machine that was never suspended.
fn at(timer: Instant) -> Moment {
    let since_boot = Duration::ZERO;
    Moment { timer, since_boot }
}

/// Begins a beat and sends all renewals that it needs.
fn begin(leases: &mut KeptLeases, beat: u64, numbers: &[u8], now: Instant) -> Vec<Secret> {
    let renewals = leases.begin(beat, named(numbers), at(now));
    renewals.iter().for_each(|secret| leases.sent(secret, at(now)));
    renewals
}

/// Leases whose first beat began at the returned time.
fn begun(numbers: &[u8]) -> (KeptLeases, Instant) {
    let (mut leases, now) = (KeptLeases::named(), Instant::now());
    assert_eq!(leases.message(), Some(Message::Ask));
    begin(&mut leases, 1, numbers, now);
    (leases, now)
}

/// When the renewal under way of a lease was sent.
fn sent(leases: &KeptLeases, number: u8) -> Instant {
    let lease = leases.leases.get(&secret(number));
    let renewal = lease.and_then(|lease| lease.renewal);
    renewal.map_or_else(Instant::now, |renewal| renewal.timer)
}

fn renewed(leases: &mut KeptLeases, number: u8, ttl: Duration) {
    let sent = sent(leases, number);
    leases.renewed(&secret(number), ttl, sent);
}

fn unanswered(leases: &mut KeptLeases, number: u8) {
    let sent = sent(leases, number);
    leases.unanswered(&secret(number), sent, Error::Draining);
}

fn messages(leases: &mut KeptLeases) -> Vec<Message> {
    std::iter::from_fn(|| leases.message()).map(without_details).collect()
}

/// A message as a client of KeepAlive is shown it.
fn without_details(mut message: Message) -> Message {
    if let Message::Kept {
        not_renewed, new_ttls, ..
    } = &mut message
    {
        not_renewed.clear();
        new_ttls.clear();
    }
    message
}

#[test]
fn a_beat_is_answered_when_all_leases_have_an_outcome_and_the_next_is_due_at_a_third_of_the_shortest_ttl() {
    let (mut leases, now) = begun(&[0, 1, 2]);
    renewed(&mut leases, 2, TTL);
    renewed(&mut leases, 0, 2 * TTL);
    assert!(leases.is_beating() && messages(&mut leases).is_empty());
    leases.lost(&secret(1), gone(Cause::Forced));
    assert!(!leases.is_beating());
    let told = [lost(1, Cause::Forced), kept(1, &[2 * TTL, Duration::ZERO, TTL])];
    assert_eq!(messages(&mut leases), told);
    let due = now + TTL / 3;
    assert_eq!(leases.next_wake(), Some(due));
    leases.wake(due - Duration::from_millis(1));
    assert!(messages(&mut leases).is_empty());
    leases.wake(due);
    leases.wake(due);
    assert_eq!(messages(&mut leases), [Message::Ask], "asked once");
}

#[test]
fn a_lease_that_cannot_be_kept_is_told_and_the_others_are_kept() {
    let (mut leases, now) = (KeptLeases::named(), Instant::now());
    leases.message();
    let mut all = named(&[0, 1]);
    all[0].1 = Err(Error::Superseded);
    assert_eq!(leases.begin(1, all, at(now)), [secret(1)]);
    leases.sent(&secret(1), at(now));
    renewed(&mut leases, 1, TTL);
    let (lease_id, error) = (id(0), Error::Superseded);
    let told = [Message::Lost { lease_id, error }, kept(1, &[Duration::ZERO, TTL])];
    assert_eq!(messages(&mut leases), told);
}

#[test]
fn a_slow_renewal_confirms_the_rest_of_its_time_to_the_next_beat() {
    let (mut leases, now) = begun(&[0]);
    assert_eq!(leases.next_wake(), Some(now + FIRST_INTERVAL));
    let later = now + FIRST_INTERVAL;
    leases.wake(later);
    assert_eq!(messages(&mut leases), [kept(1, &[Duration::ZERO]), Message::Ask]);
    assert_eq!(begin(&mut leases, 2, &[0], later), [], "it is still under way");
    renewed(&mut leases, 0, TTL);
    assert_eq!(messages(&mut leases), [kept(2, &[TTL - FIRST_INTERVAL])]);
    assert_eq!(leases.next_wake(), Some(later + TTL / 3));
    // One that is answered between two beats confirms nothing, and its lease is renewed first.
    begin(&mut leases, 3, &[0], later);
    leases.wake(later + TTL / 3);
    messages(&mut leases);
    renewed(&mut leases, 0, TTL);
    assert!(messages(&mut leases).is_empty());
    assert_eq!(begin(&mut leases, 4, &[0], later + TTL), [secret(0)]);
}

#[test]
fn leases_that_were_not_renewed_come_first_in_the_next_beat() {
    let (mut leases, now) = begun(&[0, 1, 2]);
    renewed(&mut leases, 0, TTL);
    unanswered(&mut leases, 1);
    renewed(&mut leases, 2, TTL);
    assert_eq!(messages(&mut leases), [kept(1, &[TTL, Duration::ZERO, TTL])]);
    let renewals = begin(&mut leases, 2, &[0, 1, 2], now);
    assert_eq!(renewals, [secret(1), secret(0), secret(2)]);
}

#[test]
fn a_lease_of_unknown_ttl_is_asked_for_soon_and_then_less_often() {
    let (mut leases, mut now) = begun(&[0]);
    renewed(&mut leases, 0, TTL);
    messages(&mut leases);
    let mut intervals = Vec::new();
    for beat in 2..8 {
        begin(&mut leases, beat, &[0, 1], now);
        renewed(&mut leases, 0, TTL);
        assert!(
            leases.next_wake() <= Some(now + FIRST_INTERVAL),
            "the answer does not wait for longer"
        );
        unanswered(&mut leases, 1);
        let next = leases.next_wake().unwrap();
        intervals.push((next - now).as_secs());
        now = next;
    }
    assert_eq!(intervals, [1, 2, 4, 8, 8, 8]);
    begin(&mut leases, 8, &[0, 1], now);
    renewed(&mut leases, 0, TTL);
    renewed(&mut leases, 1, TTL / 3);
    assert_eq!(leases.next_wake(), Some(now + TTL / 9));
}

#[test]
fn a_client_without_leases_is_asked_again() {
    let (mut leases, now) = begun(&[]);
    assert_eq!(messages(&mut leases), [kept(1, &[])]);
    assert_eq!(leases.next_wake(), Some(now + IDLE_INTERVAL));
}

#[test]
fn the_end_of_a_lease_is_told_once() {
    let (mut leases, now) = begun(&[0, 1]);
    leases.lost(&secret(0), gone(Cause::Released));
    // The outcome of the renewal comes after the end, and then the end is seen again.
    renewed(&mut leases, 0, TTL);
    unanswered(&mut leases, 0);
    leases.lost(&secret(0), gone(Cause::Expired));
    assert!(leases.is_beating());
    renewed(&mut leases, 1, TTL);
    let told = [lost(0, Cause::Released), kept(1, &[Duration::ZERO, TTL])];
    assert_eq!(messages(&mut leases), told);
    // A look at it that comes late shows nothing either.
    leases.not_found_out(&secret(0), now);
    assert_eq!(leases.wake(now + TTL), [secret(1)]);
}

#[test]
fn a_lease_whose_time_is_over_is_looked_at_until_its_end_is_known() {
    let (mut leases, now) = begun(&[0, 1]);
    renewed(&mut leases, 0, TTL);
    renewed(&mut leases, 1, 2 * TTL);
    assert!(leases.wake(now + TTL / 3).is_empty());
    messages(&mut leases);
    let over = now + TTL;
    assert_eq!(leases.next_wake(), Some(over));
    assert_eq!(leases.wake(over), [secret(0)]);
    assert_eq!(leases.wake(over + LOOK_AGAIN), [], "one look at a time");
    // Another client renewed it.
    leases.found(&secret(0), TTL / 2, over);
    assert_eq!(leases.wake(over + TTL / 2), [secret(0)]);
    // The store rounds what is left down.
    leases.found(&secret(0), Duration::ZERO, over);
    assert_eq!(leases.next_wake(), Some(over + BETWEEN_LOOKS));
    assert_eq!(leases.wake(over + BETWEEN_LOOKS), [secret(0)]);
    // The store does not answer.
    leases.not_found_out(&secret(0), over);
    assert_eq!(leases.wake(over + LOOK_AGAIN), [secret(0)]);
    leases.lost(&secret(0), gone(Cause::Expired));
    assert_eq!(messages(&mut leases), [lost(0, Cause::Expired)]);
    assert_eq!(leases.next_wake(), Some(now + 2 * TTL));
}

#[test]
fn an_unanswered_beat_puts_off_no_look() {
    let (mut leases, now) = begun(&[0]);
    renewed(&mut leases, 0, TTL);
    messages(&mut leases);
    begin(&mut leases, 2, &[0], now + TTL / 3);
    unanswered(&mut leases, 0);
    assert_eq!(leases.wake(now + TTL), [secret(0)]);
}

#[test]
fn a_beat_replaces_the_leases_of_the_one_before() {
    let (mut leases, now) = begun(&[0, 1]);
    renewed(&mut leases, 0, TTL);
    renewed(&mut leases, 1, TTL);
    messages(&mut leases);
    begin(&mut leases, 2, &[1], now + TTL / 3);
    leases.lost(&secret(0), gone(Cause::Forced));
    renewed(&mut leases, 1, TTL);
    assert_eq!(messages(&mut leases), [kept(2, &[TTL])]);
}

#[test]
fn an_earlier_renewal_of_a_lease_that_was_not_named_for_a_while_confirms_nothing() {
    let (mut leases, now) = begun(&[0]);
    leases.wake(now + FIRST_INTERVAL);
    begin(&mut leases, 2, &[], now + FIRST_INTERVAL);
    let later = now + TTL;
    begin(&mut leases, 3, &[0], later);
    messages(&mut leases);
    leases.renewed(&secret(0), TTL, now);
    leases.unanswered(&secret(0), now, Error::Draining);
    assert!(leases.is_beating() && messages(&mut leases).is_empty());
    leases.renewed(&secret(0), TTL, later);
    assert_eq!(messages(&mut leases), [kept(3, &[TTL])]);
}

/// A lease that was attached with its TTL at the returned time.
fn attached(numbers: &[u8]) -> (KeptLeases, Instant) {
    let (mut leases, now) = (KeptLeases::attached(), Instant::now());
    for number in numbers {
        leases.attach(id(*number), secret(*number), Some(TTL), now);
    }
    (leases, now)
}

/// Begins a beat with all attached leases and sends its renewals.
fn begin_attached(leases: &mut KeptLeases, beat: u64, now: Instant) {
    let renewals = leases.begin_attached(beat, at(now));
    renewals.iter().for_each(|secret| leases.sent(secret, at(now)));
}

/// The leases that the next message, which answers a beat, says were not renewed.
fn not_renewed(leases: &mut KeptLeases) -> Vec<(String, Option<Error>)> {
    loop {
        match leases.message() {
            Some(Message::Kept { not_renewed, .. }) => {
                let mut all: Vec<_> = not_renewed
                    .into_iter()
                    .map(|lease| (lease.lease_id, lease.error))
                    .collect();
                all.sort_by(|one, other| one.0.cmp(&other.0));
                return all;
            }
            Some(_) => {}
            None => panic!("the beat was not answered"),
        }
    }
}

/// The TTLs that the next message, which answers a beat that renewed all leases, tells anew.
fn new_ttls(leases: &mut KeptLeases) -> Vec<(String, Duration)> {
    match leases.message() {
        Some(Message::Kept {
            not_renewed, new_ttls, ..
        }) if not_renewed.is_empty() => new_ttls,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_that_attached_leases_is_asked_in_time_and_one_without_leases_is_not() {
    let (mut leases, now) = attached(&[]);
    assert_eq!(leases.next_wake(), None);
    begin_attached(&mut leases, 1, now);
    assert_eq!(not_renewed(&mut leases), []);
    assert_eq!(leases.next_wake(), None);
    leases.attach(id(0), secret(0), Some(TTL), now);
    leases.attach(id(1), secret(1), Some(TTL / 2), now);
    assert_eq!(leases.next_wake(), Some(now + TTL / 6));
    leases.wake(now + TTL / 6);
    assert_eq!(messages(&mut leases), [Message::Ask]);
    // It was asked, so a further lease is no reason to ask again before it answers.
    leases.attach(id(2), secret(2), None, now + TTL / 6);
    leases.wake(now + TTL / 4);
    assert_eq!(messages(&mut leases), []);
    begin_attached(&mut leases, 2, now + TTL / 4);
    (0..3).for_each(|number| renewed(&mut leases, number, TTL));
    assert_eq!(not_renewed(&mut leases), []);
    assert_eq!(leases.next_wake(), Some(now + TTL / 4 + TTL / 3));
    (0..3).for_each(|number| _ = leases.detach(&secret(number)));
    leases.wake(now + TTL);
    assert_eq!(messages(&mut leases), [], "all were detached meanwhile");
}

#[test]
fn a_lease_of_unknown_ttl_that_is_attached_is_asked_for_at_once() {
    let (mut leases, now) = attached(&[0]);
    leases.attach(id(1), secret(1), None, now);
    assert_eq!(leases.next_wake(), Some(now));
    leases.wake(now);
    assert_eq!(messages(&mut leases), [Message::Ask]);
}

#[test]
fn a_beat_tells_each_attached_lease_that_it_did_not_renew_and_why() {
    let (mut leases, now) = attached(&[0, 1, 2, 3]);
    begin_attached(&mut leases, 1, now);
    renewed(&mut leases, 0, TTL);
    leases.lost(&secret(1), gone(Cause::Forced));
    unanswered(&mut leases, 2);
    assert!(leases.is_beating());
    leases.wake(now + TTL / 3);
    let expected = [
        (id(1), Some(gone(Cause::Forced))),
        (id(2), Some(Error::Draining)),
        (id(3), None),
    ];
    assert_eq!(not_renewed(&mut leases), expected);
}

// G41
#[test]
fn a_beat_confirms_no_renewal_that_was_sent_before_it() {
    let (mut leases, now) = attached(&[0]);
    begin_attached(&mut leases, 1, now);
    let later = now + TTL / 3;
    leases.wake(later);
    assert_eq!(not_renewed(&mut leases), [(id(0), None)]);
    begin_attached(&mut leases, 2, later);
    leases.renewed(&secret(0), TTL, now);
    assert_eq!(
        not_renewed(&mut leases),
        [(id(0), None)],
        "its client counts from the beat"
    );
}

#[test]
fn a_beat_tells_each_ttl_that_is_not_the_one_that_the_client_counts_with() {
    let (mut leases, now) = attached(&[]);
    leases.attach(id(0), secret(0), None, now);
    let unary = TTL / 6;
    for (beat, ttl, told) in [(1, TTL, true), (2, TTL, false), (3, unary, true), (4, unary, false)] {
        begin_attached(&mut leases, beat, now);
        renewed(&mut leases, 0, ttl);
        let expected = if told { vec![(id(0), ttl)] } else { Vec::new() };
        assert_eq!(new_ttls(&mut leases), expected, "beat {beat}");
    }
    leases.renew_begins(&secret(0));
    leases.renew_ended(&secret(0), Some(2 * TTL), now);
    begin_attached(&mut leases, 5, now);
    renewed(&mut leases, 0, 2 * TTL);
    assert_eq!(new_ttls(&mut leases), [], "the answer to the command told it");
}

#[test]
fn a_client_whose_beat_was_refused_or_that_had_no_leases_to_keep_is_asked_again() {
    let (mut leases, now) = attached(&[0]);
    let asked = now + TTL / 3;
    leases.wake(asked);
    assert_eq!(messages(&mut leases), [Message::Ask]);
    leases.refused(asked);
    leases.wake(asked + FIRST_INTERVAL);
    assert_eq!(messages(&mut leases), [Message::Ask]);
    leases.detach(&secret(0));
    leases.attach(id(1), secret(1), Some(TTL), asked);
    leases.wake(asked + TTL / 3);
    assert_eq!(messages(&mut leases), [Message::Ask]);
}
