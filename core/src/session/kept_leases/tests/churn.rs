//! Leases that come and go while a beat is processed.

use super::*;

#[test]
fn a_beat_names_only_leases_that_were_attached_when_it_began_and_each_once() {
    let (mut leases, now) = attached(&[0, 1, 2]);
    begin_attached(&mut leases, 1, now);
    for number in 3..100 {
        leases.attach(id(number), secret(number), Some(TTL), now);
        leases.lost(&secret(number), gone(Cause::Forced));
    }
    for _ in 0..100 {
        leases.lost(&secret(0), gone(Cause::Forced));
        leases.attach(id(0), secret(0), Some(TTL), now);
    }
    // The beat does not confirm what is attached anew.
    leases.detach(&secret(1));
    leases.attach(id(1), secret(1), Some(TTL), now);
    renewed(&mut leases, 2, TTL);
    assert_eq!(
        not_renewed(&mut leases),
        [
            (id(0), Some(gone(Cause::Forced))),
            (
                id(1),
                Some(InvalidField::new("lease_id", "was detached before the answer to the keep_alive").into())
            )
        ]
    );
}
