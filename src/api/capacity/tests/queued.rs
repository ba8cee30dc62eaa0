//! Those who read, while others have reached a limit.

use super::*;

/// A capacity of which another connection of the same address has used more than its share.
fn exhausted() -> (Arc<Capacity>, ConnectionUsage, impl Sized) {
    let capacity = Capacity::new(&settings(), None);
    let one = connect(&capacity, "10.0.0.1:1").0.unwrap();
    let other = connect(&capacity, "10.0.0.1:2").0.unwrap();
    let held = answer(&other, None, 8_000).unwrap();
    (capacity, one, (other, held))
}

#[test]
fn a_stream_that_has_queued_little_may_queue_more_and_one_that_has_queued_much_may_not() {
    let (capacity, one, _others) = exhausted();
    let mut queued = QueuedBytes::new(Some(ByteCounters {
        answers: one.stream(CancellationToken::new()),
        identity: None,
    }));
    queued.add(4_000).expect("it is little");
    let before = capacity.unsent.load(Ordering::Relaxed);
    assert!(queued.add(200).is_err(), "it is much");
    assert_eq!(
        (queued.bytes(), capacity.unsent.load(Ordering::Relaxed)),
        (4_000, before),
        "what was refused does not count"
    );
    queued.subtract(4_000);
    queued.add(200).expect("it is little again");
    // A stream may queue a quarter of what its connection may have unsent.
    assert_eq!((queued.limit(1 << 20), queued.limit(100)), (500, 100));
}

#[test]
fn each_stream_and_the_connection_itself_may_have_little_unsent() {
    let (_capacity, one, _others) = exhausted();
    let short = || Bytes::from(vec![0; 3_000]);
    let streams = [(); 3].map(|()| ByteCounters {
        answers: one.stream(CancellationToken::new()),
        identity: None,
    });
    let held = streams.each_ref().map(|stream| CountedData::new(short(), Some(stream)));
    assert!(held.iter().all(Result::is_ok), "{held:?}");
    assert!(answer(&one, None, 3_000).is_ok(), "an answer that is of no stream");
    for stream in &streams {
        assert!(
            CountedData::new(short(), Some(stream)).is_err(),
            "it has more than little"
        );
    }
}

#[test]
fn several_short_answers_of_one_connection_are_accepted() {
    let (_capacity, one, _others) = exhausted();
    let held = [answer(&one, None, 500), answer(&one, None, 500)];
    assert!(held.iter().all(Result::is_ok), "{held:?}");
    assert!(answer(&one, None, 3_000).is_err(), "these are not short");
}
