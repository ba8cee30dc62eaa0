use super::*;

const NONE: [u64; 0] = [];
const A: LockNumber = 1;
const B: LockNumber = 2;

fn commands() -> Commands<&'static str> {
    Commands::default()
}

fn ids(started: Vec<Started<&'static str>>) -> Vec<u64> {
    started.iter().map(|started| started.id).collect()
}

/// Adds a command, and returns whether it starts at once.
fn starts(commands: &mut Commands<&'static str>, id: u64, order: Order) -> bool {
    assert!(!commands.contains(id), "it may be added");
    commands.add(id, order, "a command").is_some()
}

#[test]
fn commands_on_one_lock_start_one_after_the_other_and_those_on_others_at_once() {
    let mut all = commands();
    assert!(starts(&mut all, 1, Order::After(A)));
    assert!(!starts(&mut all, 2, Order::After(A)));
    assert!(!starts(&mut all, 3, Order::Acquire(A)));
    assert!(starts(&mut all, 4, Order::After(B)));
    assert_eq!(ids(all.ended(4)), NONE);
    assert_eq!(ids(all.ended(1)), [2]);
    assert_eq!(ids(all.ended(2)), [3]);
    assert_eq!(ids(all.ended(3)), NONE);
    assert!(all.is_empty() && all.locks.is_empty());
}

#[test]
fn acquires_start_together_and_a_command_behind_them_when_all_are_in_the_queue() {
    let mut all = commands();
    assert!(starts(&mut all, 1, Order::Acquire(A)));
    assert!(starts(&mut all, 2, Order::Acquire(A)));
    assert!(!starts(&mut all, 3, Order::After(A)));
    assert!(!starts(&mut all, 4, Order::Acquire(A)), "no command passes another one");
    assert_eq!(ids(all.enqueued(1)), NONE);
    assert_eq!(ids(all.enqueued(1)), NONE, "twice is once");
    assert_eq!(ids(all.enqueued(2)), [3]);
    assert_eq!(ids(all.ended(1)), NONE);
    assert_eq!(ids(all.ended(3)), [4]);
    assert_eq!(all.len(), 2);
    assert_eq!((ids(all.ended(2)), ids(all.ended(4))), (vec![], vec![]));
    assert!(all.is_empty() && all.locks.is_empty());
}

#[test]
fn a_release_starts_when_the_acquires_before_it_are_placed_and_other_commands_do_not() {
    let mut all = commands();
    assert!(starts(&mut all, 1, Order::Acquire(A)));
    assert!(starts(&mut all, 2, Order::Acquire(A)));
    assert!(!starts(&mut all, 3, Order::Release(A)));
    assert_eq!(ids(all.sequenced(1)), NONE, "the other one is not");
    assert_eq!(ids(all.sequenced(1)), NONE, "twice is once");
    assert_eq!(ids(all.sequenced(2)), [3]);
    assert!(!starts(&mut all, 4, Order::Acquire(A)), "it is behind the release");
    assert!(!starts(&mut all, 5, Order::After(A)));
    assert_eq!(ids(all.ended(3)), [4]);
    assert_eq!(
        ids(all.sequenced(4)),
        NONE,
        "a command that is no release waits until all have taken effect"
    );
    assert_eq!((ids(all.enqueued(1)), ids(all.ended(2))), (vec![], vec![]));
    assert_eq!(ids(all.enqueued(4)), [5]);
    assert_eq!(
        (ids(all.ended(1)), ids(all.ended(4)), ids(all.ended(5))),
        (vec![], vec![], vec![])
    );
    assert!(all.is_empty() && all.locks.is_empty());
}

#[test]
fn a_release_waits_for_tries_and_other_commands_before_it() {
    let mut all = commands();
    assert!(starts(&mut all, 1, Order::Try(A)));
    assert!(!starts(&mut all, 2, Order::Release(A)));
    assert_eq!(ids(all.sequenced(1)), NONE);
    assert_eq!(ids(all.ended(1)), [2]);
    assert!(!starts(&mut all, 3, Order::After(A)));
    assert!(!starts(&mut all, 4, Order::Release(A)));
    assert_eq!(ids(all.ended(2)), [3]);
    assert_eq!(ids(all.ended(3)), [4]);
    assert_eq!(ids(all.ended(4)), NONE);
    assert!(all.is_empty() && all.locks.is_empty());
}

#[test]
fn releases_start_together_and_a_command_behind_them_when_all_have_ended() {
    for behind in [Order::Acquire(A), Order::Try(A), Order::After(A)] {
        let mut all = commands();
        assert!(starts(&mut all, 1, Order::Release(A)));
        assert!(starts(&mut all, 2, Order::Release(A)));
        assert!(!starts(&mut all, 3, behind));
        assert!(!starts(&mut all, 4, Order::Release(A)), "no command passes another one");
        assert_eq!(ids(all.ended(2)), NONE);
        assert_eq!(ids(all.sequenced(1)), NONE, "only an Acquire is sequenced");
        assert_eq!(ids(all.ended(1)), [3]);
        assert_eq!(ids(all.ended(3)), [4]);
        assert_eq!(ids(all.ended(4)), NONE);
        assert!(all.is_empty() && all.locks.is_empty());
    }
}

#[test]
fn several_acquires_start_when_the_command_before_them_ends() {
    let mut all = commands();
    assert!(starts(&mut all, 1, Order::After(A)));
    assert!(!starts(&mut all, 2, Order::Acquire(A)));
    assert!(!starts(&mut all, 3, Order::Acquire(A)));
    assert_eq!(ids(all.ended(1)), [2, 3]);
}

#[test]
fn a_command_that_has_not_started_is_taken_out() {
    let mut all = commands();
    assert!(starts(&mut all, 1, Order::Acquire(A)));
    assert!(!starts(&mut all, 2, Order::After(A)));
    assert!(!starts(&mut all, 3, Order::Acquire(A)));
    assert!(all.take(1).is_none() && all.take(9).is_none());
    let (taken, next) = all.take(2).expect("it waits");
    assert_eq!((taken, ids(next)), ("a command", vec![3]));
    assert!(all.take(2).is_none());
    assert_eq!((ids(all.ended(3)), ids(all.ended(1))), (vec![], vec![]));
    assert!(all.is_empty() && all.locks.is_empty());
}

#[test]
fn a_command_is_in_flight_until_its_result() {
    let mut all = commands();
    assert!(starts(&mut all, 1, Order::Acquire(A)));
    all.enqueued(1);
    assert_eq!((all.contains(1), all.len()), (true, 1));
    all.ended(1);
    assert!(!all.contains(1) && all.is_empty());
}

#[test]
fn an_acquire_that_does_not_wait_starts_alone() {
    let mut all = commands();
    assert!(starts(&mut all, 1, Order::Try(A)));
    assert!(!starts(&mut all, 2, Order::Try(A)));
    assert!(!starts(&mut all, 3, Order::Acquire(A)));
    assert!(!starts(&mut all, 4, Order::Acquire(A)));
    assert!(!starts(&mut all, 5, Order::Try(A)));
    assert_eq!(ids(all.ended(1)), [2]);
    assert_eq!(ids(all.ended(2)), [3, 4]);
    assert!(ids(all.enqueued(3)).is_empty());
    assert_eq!(ids(all.enqueued(4)), [5]);
    let mut held_up = commands();
    assert!(starts(&mut held_up, 1, Order::Try(A)));
    assert!(!starts(&mut held_up, 2, Order::Try(A)));
    assert_eq!(held_up.held_up_acquires(), [2]);
}

#[test]
fn commands_behind_one_are_taken_out_up_to_the_first_that_goes_on() {
    let mut all = commands();
    assert!(starts(&mut all, 1, Order::After(A)));
    for (id, order) in [
        (2, Order::Try(A)),
        (3, Order::Release(A)),
        (4, Order::Acquire(A)),
        (5, Order::Try(A)),
    ] {
        assert!(!starts(&mut all, id, order));
    }
    assert!(starts(&mut all, 6, Order::Try(B)));
    let to_four = |id| id == 4;
    assert_eq!(ids(all.take_behind(1, to_four)), [2, 3]);
    assert!(!all.contains(2) && !all.contains(3));
    assert!(all.take_behind(1, to_four).is_empty());
    assert_eq!(ids(all.take_behind(1, |_| false)), [4, 5]);
    assert_eq!((ids(all.ended(1)), ids(all.ended(6))), (vec![], vec![]));
    assert!(all.is_empty() && all.locks.is_empty());
}

fn starts_several(commands: &mut Commands<&'static str>, id: u64, may_wait: bool) -> bool {
    commands.add_several(id, [A, B].into(), may_wait, "a command").is_some()
}

// G216
#[test]
fn a_command_on_several_locks_starts_when_those_before_it_on_each_have_taken_effect() {
    let mut all = commands();
    assert!(starts(&mut all, 1, Order::After(A)) && starts(&mut all, 2, Order::Acquire(B)));
    assert!(!starts_several(&mut all, 3, false));
    assert!(!starts(&mut all, 4, Order::Release(A)) && !starts(&mut all, 5, Order::Try(B)));
    assert_eq!(ids(all.ended(1)), NONE);
    assert_eq!(ids(all.enqueued(2)), [3]);
    assert_eq!((all.len(), all.contains(3)), (4, true));
    assert_eq!(ids(all.ended(3)), [4, 5]);
    for id in [2, 4, 5] {
        all.ended(id);
    }
    assert!(all.is_empty() && all.locks.is_empty());
}

// G216
#[test]
fn a_command_on_several_locks_that_may_wait_keeps_none_behind_it_waiting() {
    let mut all = commands();
    assert!(starts(&mut all, 1, Order::After(A)));
    assert!(!starts_several(&mut all, 2, true));
    assert!(!starts(&mut all, 3, Order::Release(A)) && starts(&mut all, 4, Order::Release(B)));
    assert_eq!(ids(all.ended(1)), [2, 3]);
    for id in [2, 3, 4] {
        assert_eq!(ids(all.ended(id)), NONE);
    }
    assert!(all.is_empty() && all.locks.is_empty());
}

// G216
#[test]
fn a_command_on_several_locks_is_taken_out_before_it_has_started() {
    for may_wait in [false, true] {
        let mut all = commands();
        assert!(starts(&mut all, 1, Order::After(A)));
        assert!(!starts_several(&mut all, 2, may_wait));
        assert!(!starts(&mut all, 3, Order::After(A)) && starts(&mut all, 4, Order::After(B)) == may_wait);
        assert_eq!(all.held_up_acquires(), if may_wait { vec![2] } else { vec![] });
        let (_, next) = all.take(2).expect("it has not started");
        assert_eq!(ids(next), if may_wait { vec![] } else { vec![4] });
        assert_eq!(ids(all.ended(1)), [3]);
        all.ended(3);
        all.ended(4);
        assert!(all.is_empty() && all.locks.is_empty());
    }
}
