//! What a beat confirms of leases that commands renew, detach or attach meanwhile.

use super::*;

/// What is said of a lease that was detached before its beat was answered.
fn detached(number: u8) -> (String, Option<Error>) {
    let error = InvalidField::new("lease_id", "was detached before the answer to the keep_alive");
    (id(number), Some(error.into()))
}

#[test]
fn a_lease_that_a_command_is_renewing_is_renewed_again_after_the_command() {
    let (mut leases, now) = attached(&[0]);
    leases.renew_begins(&secret(0));
    begin_attached(&mut leases, 1, now);
    renewed(&mut leases, 0, TTL);
    assert!(leases.is_beating(), "the command may change the TTL");
    assert!(leases.renew_ended(&secret(0), Some(2 * TTL), now));
    leases.sent(&secret(0), at(now));
    renewed(&mut leases, 0, 2 * TTL);
    assert_eq!(new_ttls(&mut leases), [], "the answer to the command told it");
    leases.renew_begins(&secret(0));
    assert!(!leases.renew_ended(&secret(0), None, now), "no beat waits for it");
}

#[test]
fn a_beat_does_not_wait_longer_for_a_command_than_for_the_store() {
    let (mut leases, now) = attached(&[0]);
    begin_attached(&mut leases, 1, now);
    leases.renew_begins(&secret(0));
    renewed(&mut leases, 0, TTL);
    leases.wake(now + TTL / 3);
    assert_eq!(not_renewed(&mut leases), [(id(0), None)]);
    begin_attached(&mut leases, 2, now);
    leases.renew_begins(&secret(0));
    leases.renew_ended(&secret(0), None, now);
    assert!(
        !leases.renew_ended(&secret(0), None, now),
        "the beat that waited for it is over"
    );
    renewed(&mut leases, 0, TTL);
    assert_eq!(not_renewed(&mut leases), []);
}

#[test]
fn a_lease_that_is_detached_during_a_beat_is_not_confirmed() {
    let (mut leases, now) = attached(&[0, 1, 3]);
    begin_attached(&mut leases, 1, now);
    leases.attach(id(2), secret(2), Some(TTL), now);
    leases.detach(&secret(0));
    leases.detach(&secret(2));
    assert!(leases.is_beating());
    // It is attached already, and its renewal is under way.
    leases.attach(id(1), secret(1), Some(TTL), now);
    assert!(leases.is_beating());
    renewed(&mut leases, 3, TTL);
    leases.detach(&secret(3));
    renewed(&mut leases, 1, TTL);
    assert_eq!(not_renewed(&mut leases), [detached(0), detached(3)]);
    leases.lost(&secret(0), gone(Cause::Forced));
    assert_eq!(
        messages(&mut leases),
        [],
        "nothing more is told of a lease that was detached"
    );
}

#[test]
fn a_lease_that_is_detached_before_the_beat_of_a_keep_alive_begins_is_not_confirmed() {
    let (mut leases, now) = attached(&[0, 1]);
    leases.detach(&secret(1));
    leases.keep_alive_arrived();
    leases.attach(id(2), secret(2), Some(TTL), now);
    leases.detach(&secret(0));
    leases.detach(&secret(2));
    begin_attached(&mut leases, 1, now);
    assert_eq!(
        not_renewed(&mut leases),
        [detached(0)],
        "the others were not attached when the keep_alive arrived"
    );
    begin_attached(&mut leases, 2, now);
    assert_eq!(not_renewed(&mut leases), []);
}

#[test]
fn a_lease_that_is_detached_between_two_keep_alives_is_confirmed_by_neither() {
    let (mut leases, now) = attached(&[0, 1]);
    begin_attached(&mut leases, 1, now);
    leases.keep_alive_arrived();
    leases.detach(&secret(0));
    renewed(&mut leases, 1, TTL);
    assert_eq!(not_renewed(&mut leases), [detached(0)]);
    begin_attached(&mut leases, 2, now);
    renewed(&mut leases, 1, TTL);
    assert_eq!(not_renewed(&mut leases), [detached(0)]);
}

#[test]
fn keep_alives_that_share_a_beat_name_a_lease_that_was_detached_between_them() {
    let (mut leases, now) = attached(&[0, 1]);
    leases.keep_alive_arrived();
    leases.detach(&secret(0));
    leases.keep_alive_arrived();
    begin_attached(&mut leases, 1, now);
    renewed(&mut leases, 1, TTL);
    assert_eq!(not_renewed(&mut leases), [detached(0)]);
}

#[test]
fn a_lease_that_is_attached_again_before_its_beat_begins_is_confirmed_and_its_ttl_is_told() {
    let (mut leases, now) = attached(&[0]);
    leases.keep_alive_arrived();
    assert_eq!(leases.detach(&secret(0)), NamedBy::NextBeat);
    leases.attach(id(0), secret(0), None, now);
    begin_attached(&mut leases, 1, now);
    renewed(&mut leases, 0, TTL);
    assert_eq!(new_ttls(&mut leases), [(id(0), TTL)]);
}

#[test]
fn a_refused_keep_alive_names_no_lease_in_a_later_beat() {
    let (mut leases, now) = attached(&[0, 1]);
    leases.keep_alive_arrived();
    assert_eq!(leases.detach(&secret(0)), NamedBy::NextBeat);
    leases.beat_refused(now);
    begin_attached(&mut leases, 1, now);
    assert_eq!(leases.detach(&secret(7)), NamedBy::None);
    renewed(&mut leases, 1, TTL);
    assert_eq!(not_renewed(&mut leases), []);
}

#[test]
fn a_lease_that_a_command_renewed_after_the_beat_had_is_confirmed() {
    let (mut leases, now) = attached(&[0, 1]);
    begin_attached(&mut leases, 1, now);
    renewed(&mut leases, 0, TTL);
    leases.renew_begins(&secret(0));
    assert!(!leases.renew_ended(&secret(0), Some(3 * TTL), now));
    leases.renew_begins(&secret(0));
    renewed(&mut leases, 1, TTL);
    assert_eq!(new_ttls(&mut leases), [], "the answer to the command told it");
    assert!(!leases.renew_ended(&secret(0), None, now));
}
