//! A replica that is suspended while it waits for its store.

use super::*;

/// How long the replica is suspended, longer than a lease lives.
const SUSPENDED: Duration = Duration::from_secs(60);

/// A moment after the suspend, which the clock of the timers did not see.
fn after(timer: Instant) -> Moment {
    let since_boot = SUSPENDED;
    Moment { timer, since_boot }
}

#[test]
fn a_renewal_that_was_sent_before_a_suspend_confirms_nothing_to_a_beat_after_it() {
    let (mut leases, now) = begun(&[0]);
    let later = now + FIRST_INTERVAL;
    leases.wake(later);
    assert_eq!(messages(&mut leases), [kept(1, &[Duration::ZERO]), Message::Ask]);
    assert_eq!(leases.begin(2, named(&[0]), after(later)), [], "it is still under way");
    renewed(&mut leases, 0, TTL);
    assert_eq!(
        messages(&mut leases),
        [kept(2, &[Duration::ZERO])],
        "the lease may have ended"
    );
}

#[test]
fn a_renewal_that_was_sent_before_a_short_suspend_confirms_the_rest_of_its_time() {
    let (mut leases, now) = begun(&[0]);
    leases.wake(now + FIRST_INTERVAL);
    messages(&mut leases);
    assert_eq!(leases.begin(2, named(&[0]), after(now + FIRST_INTERVAL)), []);
    renewed(&mut leases, 0, 2 * SUSPENDED);
    assert_eq!(messages(&mut leases), [kept(2, &[SUSPENDED])]);
}
