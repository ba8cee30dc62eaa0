use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::time::sleep;

use super::*;

mod queued;
mod received;

fn settings() -> Settings {
    Settings {
        max_connections: 4,
        unsent_bytes: 8_000,
        connection_unsent_bytes: 2_000,
        ..Settings::default()
    }
}

fn tcp(address: &str) -> Peer {
    Peer::Tcp(address.parse().unwrap())
}

fn answer(to: &ConnectionUsage, identity: Option<&Arc<Usage>>, bytes: usize) -> Result<CountedData<Bytes>, Error> {
    let to = ByteCounters {
        answers: to.answers.clone(),
        identity: identity.cloned(),
    };
    CountedData::new(Bytes::from(vec![0; bytes]), Some(&to))
}

fn connect(capacity: &Arc<Capacity>, peer: &str) -> (Option<ConnectionUsage>, CancellationToken) {
    let cut = CancellationToken::new();
    (capacity.connect(tcp(peer), cut.clone()), cut)
}

#[test]
fn addresses_of_one_ipv6_network_are_one_peer() {
    let of = |address| PeerAddress::of(tcp(address));
    assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:1]:2"));
    assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
    assert_eq!(of("10.0.0.1:1"), of("[::ffff:10.0.0.1]:2"));
    assert_ne!(of("10.0.0.1:1"), of("10.0.0.2:1"));
}

#[test]
fn a_share_is_rounded_up_and_at_least_one() {
    assert_eq!(share(10_000, 50), 5_000);
    assert_eq!(share(3, 50), 2);
    assert_eq!(share(1, 1), 1);
    assert_eq!(share(4, 0), 1);
    assert!(share(usize::MAX, 100) > 1 << 50);
}

#[test]
fn one_peer_or_identity_has_its_share_of_the_connections() {
    let capacity = Capacity::new(&settings(), None);
    let one = connect(&capacity, "10.0.0.1:1").0.unwrap();
    let _two = connect(&capacity, "10.0.0.1:2").0.unwrap();
    assert!(connect(&capacity, "10.0.0.1:3").0.is_none());
    let other = connect(&capacity, "10.0.0.2:1").0.unwrap();
    let third = connect(&capacity, "10.0.0.3:1").0.unwrap();

    let identity = Identity::authenticated;
    assert!(one.identified(&identity("token:a")).is_ok());
    assert!(other.identified(&identity("token:a")).is_ok());
    assert!(third.identified(&identity("token:a")).is_err());
    assert!(third.identified(&identity("token:b")).is_ok());
    // The connection counts for the first identity that called on it.
    assert!(third.identified(&identity("token:a")).is_ok());
    drop(one);
    assert!(connect(&capacity, "10.0.0.1:3").0.is_some());
}

// G155
#[test]
fn unsent_answers_are_bounded_for_a_connection_an_identity_a_peer_and_the_server() {
    let capacity = Capacity::new(&settings(), None);
    let unlimited = Settings {
        max_connections: 100,
        connection_unsent_bytes: 1 << 20,
        ..settings()
    };
    let one = connect(&capacity, "10.0.0.1:1").0.unwrap();
    // Less than the share of an address.
    let first = answer(&one, None, 3_900).expect("the limit is checked before the answer is added");
    assert!(answer(&one, None, 10).is_err(), "the connection is at its limit");
    drop(first);
    assert!(answer(&one, None, 10).is_ok());
    let tiny: Vec<_> = (0..100).filter_map(|_| answer(&one, None, 1).ok()).collect();
    assert!(tiny.len() < 10, "{} answers of one byte, each with a call", tiny.len());
    drop(tiny);

    for by_identity in [true, false] {
        let capacity = Capacity::new(&unlimited, None);
        let identity = capacity.identities.of(Identity::authenticated("token:a"));
        let usage = by_identity.then_some(&identity);
        let peer = |number: usize| {
            if by_identity {
                format!("10.0.0.{number}:1")
            } else {
                "10.0.0.1:1".into()
            }
        };
        let holding = connect(&capacity, &peer(1)).0.unwrap();
        let _held = answer(&holding, usage, 5_000).unwrap();
        let next = connect(&capacity, &peer(2)).0.unwrap();
        assert!(answer(&next, usage, 5_000).is_err(), "by identity: {by_identity}");
        assert!(
            answer(&next, usage, 100).is_ok(),
            "a short answer on a connection without unsent ones"
        );
        let elsewhere = connect(&capacity, "10.0.1.1:1").0.unwrap();
        assert!(answer(&elsewhere, None, 5_000).is_ok());
    }

    let capacity = Capacity::new(&unlimited, None);
    let peers: Vec<_> = (1..4)
        .map(|number| connect(&capacity, &format!("10.0.0.{number}:1")).0.unwrap())
        .collect();
    let _held = [
        answer(&peers[0], None, 5_000).unwrap(),
        answer(&peers[1], None, 5_000).unwrap(),
    ];
    assert!(answer(&peers[2], None, 5_000).is_err(), "the server is at its limit");
}

#[test]
fn sent_bytes_no_longer_count() {
    let capacity = Capacity::new(&settings(), None);
    let one = connect(&capacity, "10.0.0.1:1").0.unwrap();
    let mut sent = answer(&one, None, 2_000).unwrap();
    let before = capacity.unsent.load(Ordering::Relaxed);
    sent.advance(1_500);
    assert_eq!(capacity.unsent.load(Ordering::Relaxed), before - 1_500);
    sent.advance(500);
    drop(sent);
    one.answers.note_step();
    assert_eq!(capacity.unsent.load(Ordering::Relaxed), 0);
    assert_eq!(one.peer.unsent.load(Ordering::Relaxed), 0);
    assert_eq!(one.answers.of_whole_connection(), Some(0));
}

/// How long a client may make no progress.
const STALL_LIMIT: Duration = Duration::from_secs(15);

// G46
#[tokio::test(start_paused = true)]
async fn a_connection_without_progress_for_fifteen_seconds_is_closed_and_a_slow_one_is_not() {
    let capacity = Capacity::new(&settings(), None);
    let watched = capacity.clone();
    tokio::spawn(async move { watched.watch().await });
    let (idle, idle_cut) = connect(&capacity, "10.0.0.1:1");
    let (slow, slow_cut) = connect(&capacity, "10.0.0.2:1");
    let (stalled, stalled_cut) = connect(&capacity, "10.0.0.3:1");
    let mut taken = answer(slow.as_ref().unwrap(), None, 1_000).unwrap();
    let held = answer(stalled.as_ref().unwrap(), None, 10).unwrap();
    for _ in 0..4 {
        sleep(STALL_LIMIT / 2).await;
        taken.advance(1);
        // A dropped answer does not count as progress.
        drop(answer(stalled.as_ref().unwrap(), None, 10));
    }
    assert!(!idle_cut.is_cancelled() && !slow_cut.is_cancelled() && stalled_cut.is_cancelled());
    drop((idle, held, taken));
    sleep(STALL_LIMIT).await;

    // The time starts anew for an answer after all earlier ones were sent.
    let late = answer(slow.as_ref().unwrap(), None, 10).unwrap();
    sleep(STALL_LIMIT / 2).await;
    assert!(!slow_cut.is_cancelled());
    sleep(STALL_LIMIT / 2).await;
    assert!(slow_cut.is_cancelled());
    drop(late);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_stream_ends_first_and_its_connection_if_it_stays_stalled() {
    let capacity = Capacity::new(&settings(), None);
    let watched = capacity.clone();
    tokio::spawn(async move { watched.watch().await });
    let (connection, cut) = connect(&capacity, "10.0.0.1:1");
    let connection = connection.unwrap();
    let stream_cut = CancellationToken::new();
    let to = ByteCounters {
        answers: connection.stream(stream_cut.clone()),
        identity: None,
    };
    let held = CountedData::new(Bytes::from_static(b"change"), Some(&to)).unwrap();
    let mut other = answer(&connection, None, 1_000).unwrap();
    let began = tokio::time::Instant::now();
    while !stream_cut.is_cancelled() {
        assert!(began.elapsed() < STALL_LIMIT);
        sleep(STEP).await;
        other.advance(1);
    }
    assert!(!cut.is_cancelled(), "the connection stays open");
    while !cut.is_cancelled() {
        assert!(began.elapsed() < STALL_LIMIT);
        sleep(STEP).await;
        other.advance(1);
    }
    drop((held, other));
}

#[tokio::test(start_paused = true)]
async fn a_connection_outlasts_its_only_stalled_stream() {
    let capacity = Capacity::new(&settings(), None);
    let watched = capacity.clone();
    tokio::spawn(async move { watched.watch().await });
    let (connection, cut) = connect(&capacity, "10.0.0.1:1");
    let stream_cut = CancellationToken::new();
    let to = ByteCounters {
        answers: connection.as_ref().unwrap().stream(stream_cut.clone()),
        identity: None,
    };
    let held = CountedData::new(Bytes::from_static(b"change"), Some(&to)).unwrap();
    stream_cut.cancelled().await;
    assert!(!cut.is_cancelled());
    // The end of the stream drops what it had not sent.
    drop(held);
    sleep(STALL_LIMIT).await;
    assert!(!cut.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_the_process_is_no_stall_of_its_clients() {
    let capacity = Capacity::new(&settings(), None);
    let watched = capacity.clone();
    tokio::spawn(async move { watched.watch().await });
    sleep(STEP).await;
    let (connection, cut) = connect(&capacity, "10.0.0.1:1");
    let held = answer(connection.as_ref().unwrap(), None, 10).unwrap();
    tokio::time::advance(4 * STALL_LIMIT).await;
    sleep(STEP).await;
    assert!(!cut.is_cancelled());
    cut.cancelled().await;
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_kept_who_uses_nothing() {
    let capacity = Capacity::new(&settings(), None);
    let watched = capacity.clone();
    tokio::spawn(async move { watched.watch().await });
    let kept = || (capacity.peers.0.lock().len(), capacity.identities.0.lock().len());
    let one = connect(&capacity, "10.0.0.1:1").0.unwrap();
    one.identified(&Identity::authenticated("token:a")).unwrap();
    drop(connect(&capacity, "10.0.0.2:1"));
    sleep(STALL_LIMIT).await;
    assert_eq!(kept(), (1, 1));
    drop(one);
    sleep(STALL_LIMIT).await;
    assert_eq!(kept(), (0, 0));
}

/// The step of the test's clock.
const STEP: Duration = Duration::from_millis(100);

#[tokio::test(start_paused = true)]
async fn the_connection_with_the_most_unsent_bytes_ends_at_the_limit_of_the_server() {
    let settings = Settings {
        connection_unsent_bytes: 1 << 20,
        max_connections: 100,
        ..settings()
    };
    let capacity = Capacity::new(&settings, None);
    let watched = capacity.clone();
    tokio::spawn(async move { watched.watch().await });
    let (small, small_cut) = connect(&capacity, "10.0.0.1:1");
    let (large, large_cut) = connect(&capacity, "10.0.0.2:1");
    let (last, last_cut) = connect(&capacity, "10.0.0.3:1");
    let held = [
        answer(small.as_ref().unwrap(), None, 3_000).unwrap(),
        answer(large.as_ref().unwrap(), None, 6_000).unwrap(),
    ];
    assert!(answer(last.as_ref().unwrap(), None, 5_000).is_err());
    sleep(STEP).await;
    assert!(large_cut.is_cancelled() && !small_cut.is_cancelled() && !last_cut.is_cancelled());
    drop(held);
    // What was too much is gone before anybody looks.
    let held = answer(small.as_ref().unwrap(), None, 10).unwrap();
    capacity.too_many.notify_one();
    sleep(STEP).await;
    assert!(!small_cut.is_cancelled());
    drop(held);
}

#[test]
fn headers_count_until_the_connection_has_written_everything() {
    let capacity = Capacity::new(&settings(), None);
    let (one, cut) = connect(&capacity, "10.0.0.1:1");
    let one = one.unwrap();
    let unsent = || capacity.unsent.load(Ordering::Relaxed);
    one.answers.count_headers();
    let of_one = unsent();
    assert!(of_one > 0);
    one.answers.note_writing(true);
    one.answers.note_step();
    assert_eq!(unsent(), of_one, "the socket did not accept them");
    one.answers.note_flushed();
    one.answers.note_step();
    assert_eq!(unsent(), 0);
    assert_eq!(one.peer.unsent.load(Ordering::Relaxed), 0);

    // The trailers that follow an answer count too.
    let mut sent = answer(&one, None, 100).unwrap();
    one.answers.note_writing(true);
    sent.advance(100);
    drop(sent);
    one.answers.note_step();
    assert_eq!(unsent(), of_one);

    // Where the client does not read, they close the connection. They are no reason to refuse a small answer.
    for _ in 0..10 {
        one.answers.count_headers();
    }
    assert!(cut.is_cancelled());
    assert!(answer(&one, None, 100).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_headers_slowly_is_not_stalled() {
    let capacity = Capacity::new(&settings(), None);
    let watched = capacity.clone();
    tokio::spawn(async move { watched.watch().await });
    let (one, cut) = connect(&capacity, "10.0.0.1:1");
    let one = one.unwrap();
    one.answers.note_writing(true);
    one.answers.count_headers();
    for _ in 0..4 {
        sleep(STALL_LIMIT / 2).await;
        one.answers.note_written();
    }
    assert!(!cut.is_cancelled());
}

#[test]
fn the_trailers_that_replace_a_refused_answer_count() {
    let capacity = Capacity::new(&settings(), None);
    let one = connect(&capacity, "10.0.0.1:1").0.unwrap();
    let held = answer(&one, None, 5_000).unwrap();
    let before = capacity.unsent.load(Ordering::Relaxed);
    assert!(answer(&one, None, 5_000).is_err());
    assert!(capacity.unsent.load(Ordering::Relaxed) > before);
    drop(held);
    one.answers.note_step();
    assert_eq!(capacity.unsent.load(Ordering::Relaxed), 0);
}

#[test]
fn headers_of_a_connection_that_ends_no_longer_count() {
    let capacity = Capacity::new(&settings(), None);
    let other = connect(&capacity, "10.0.0.1:2").0.unwrap();
    let one = connect(&capacity, "10.0.0.1:1").0.unwrap();
    one.answers.note_writing(true);
    one.answers.count_headers();
    assert!(other.peer.unsent.load(Ordering::Relaxed) > 0);
    drop(one);
    assert_eq!(capacity.unsent.load(Ordering::Relaxed), 0);
    assert_eq!(other.peer.unsent.load(Ordering::Relaxed), 0);
}

#[test]
fn headers_close_no_connection_whose_client_reads() {
    for was_blocked in [false, true] {
        let capacity = Capacity::new(&settings(), None);
        let (one, cut) = connect(&capacity, "10.0.0.1:1");
        let one = one.unwrap();
        one.answers.note_writing(was_blocked);
        if was_blocked {
            one.answers.note_flushed();
        }
        for _ in 0..10 {
            one.answers.count_headers();
        }
        assert!(!cut.is_cancelled());
    }
}

#[test]
fn a_few_unread_headers_close_no_connection_whatever_others_left_of_the_limits() {
    let capacity = Capacity::new(&settings(), None);
    let (one, cut) = connect(&capacity, "10.0.0.1:1");
    let one = one.unwrap();
    let other = connect(&capacity, "10.0.0.1:2").0.unwrap();
    let _held = answer(&other, None, 8_000).unwrap();
    one.answers.note_writing(true);
    for _ in 0..4 {
        one.answers.count_headers();
    }
    assert!(!cut.is_cancelled());
    one.answers.count_headers();
    assert!(cut.is_cancelled(), "these are more than a few");
}

#[test]
fn unread_headers_close_no_connection_that_has_its_share_or_less() {
    let settings = Settings {
        max_connections: 8,
        unsent_bytes: 40_000,
        connection_unsent_bytes: 20_000,
        ..settings()
    };
    let (few, many) = (8, 18);
    for (peer, headers, is_closed) in [
        ("10.0.0.2:1", few, false),
        ("10.0.0.2:1", many, false),
        ("10.0.0.1:2", few, false),
        ("10.0.0.1:2", many, true),
    ] {
        let capacity = Capacity::new(&settings, None);
        let other = connect(&capacity, peer).0.unwrap();
        let (one, cut) = connect(&capacity, "10.0.0.1:1");
        let one = one.unwrap();
        one.answers.note_writing(true);
        // A third connection, of which nothing is unsent, lowers the average of the peer.
        let _third = connect(&capacity, peer).0.unwrap();
        let _held = answer(&other, None, 30_000).unwrap();
        for _ in 0..headers {
            one.answers.count_headers();
        }
        assert_eq!(cut.is_cancelled(), is_closed, "{headers} beside a connection of {peer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_headers_are_unread_for_fifteen_seconds_is_closed() {
    let capacity = Capacity::new(&settings(), None);
    let watched = capacity.clone();
    tokio::spawn(async move { watched.watch().await });
    let (one, cut) = connect(&capacity, "10.0.0.1:1");
    let one = one.unwrap();
    one.answers.note_writing(true);
    one.answers.count_headers();
    sleep(STALL_LIMIT).await;
    assert!(cut.is_cancelled());
}
