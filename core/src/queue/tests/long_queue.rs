//! Queues that are long enough to be searched by maps.

use super::*;

#[test]
fn a_long_queue_finds_what_the_same_batch_granted() {
    let (mut lock, mut store) = start();
    for number in 1..30 {
        let one = NewClaim {
            reentrant: number > 25,
            ..shared(number)
        };
        acquire(&mut lock, &mut store, &one);
    }
    assert_eq!((lock.len(), lock.places()), (26, 29));
    for number in 1..30 {
        let position = lock.find(&shared(number).id);
        let position = position.unwrap_or_else(|| panic!("{number}"));
        let token = lock.get(position).unwrap().holding().unwrap().token;
        assert_eq!(lock.find_token(token), Some(position));
    }
}

#[test]
fn a_long_queue_finds_its_claims_as_a_short_one() {
    let (mut lock, mut store) = start();
    let mut leases = Vec::new();
    let find = |lock: &LockState, number: u8| lock.find(&ClaimId::from_bytes([number; 16]));
    for number in 0..40 {
        let one = NewClaim {
            reentrant: true,
            ..shared(number)
        };
        // Every fourth is a further hold of the first.
        let owner = crate::name::Owner::new(&format!("owner-{}", if number % 4 == 0 { 0 } else { number })).unwrap();
        leases.push(take(&mut lock, &mut store, &NewClaim { owner, ..one }));
        assert_eq!(lock.places(), leases.len());
        for (other, lease) in (0..).zip(&leases) {
            let position = find(&lock, other);
            assert!(position.is_some(), "{other} of {number}");
            assert_eq!(lock.find_token(lease.token), position);
        }
    }
    while let Some(lease) = leases.pop() {
        let released = lock.release(&mut store, ReleaseTarget::Hold(&lease), None).released;
        assert_eq!(released, Released::Ended(Cause::Released));
        let number = u8::try_from(leases.len()).unwrap();
        assert_eq!(find(&lock, number), None);
        let is_reentered = number % 4 == 0 && number > 0;
        assert_eq!(lock.find_token(lease.token).is_some(), is_reentered);
        assert_eq!(lock.places(), leases.len());
        assert!((0..number).all(|other| find(&lock, other).is_some()));
    }
    assert!(lock.is_empty());
}
