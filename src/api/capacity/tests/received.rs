//! Messages of which a part has arrived.

use super::*;

/// Limits of which only that of the server, and the shares of it, are reached.
fn large() -> Settings {
    Settings {
        max_connections: 100,
        unsent_bytes: 80_000,
        connection_unsent_bytes: 1 << 20,
        ..settings()
    }
}

/// A call on this connection, of this identity.
fn call(on: &ConnectionUsage, identity: Option<&Arc<Usage>>) -> ReceivedBytes {
    let received = ReceivedBytes::new(Some(Arc::clone(&on.answers)));
    if let Some(identity) = identity {
        received.by().count_for(identity);
    }
    received
}

fn refusal(raised: Result<(), Error>) -> String {
    raised.expect_err("a limit is reached").to_string()
}

// G204
#[test]
fn received_bytes_are_bounded_for_a_connection_an_identity_a_peer_and_the_server() {
    let small = Settings {
        connection_unsent_bytes: 8_000,
        ..large()
    };
    let capacity = Capacity::new(&small, None);
    let one = connect(&capacity, "10.0.0.1:1").0.unwrap();
    let mut first = call(&one, None);
    first
        .raise(5_000)
        .expect("the limit is checked before the bytes are added");
    assert!(refusal(call(&one, None).raise(5_000)).ends_with("on this connection"));
    assert!(answer(&one, None, 5_000).is_err(), "answers count with them");
    drop(first);

    for by_identity in [true, false] {
        let capacity = Capacity::new(&large(), None);
        let identity = capacity.identities.of(Identity::authenticated("token:a"));
        let usage = by_identity.then_some(&identity);
        let peer = |number: usize| match by_identity {
            true => format!("10.0.0.{number}:1"),
            false => format!("10.0.0.1:{number}"),
        };
        let connections = [1, 2].map(|number| connect(&capacity, &peer(number)).0.unwrap());
        let mut held = call(&connections[0], usage);
        held.raise(20_000).expect("half of all bytes, each counted twice");
        let whose = if by_identity {
            "of this identity"
        } else {
            "of this address"
        };
        assert!(refusal(call(&connections[1], usage).raise(5_000)).ends_with(whose));
        let elsewhere = connect(&capacity, "10.0.1.1:1").0.unwrap();
        call(&elsewhere, None).raise(5_000).expect("others have a share");
        drop(held);
        call(&connections[1], usage).raise(5_000).expect("they no longer count");
    }

    let capacity = Capacity::new(&large(), None);
    let connections = [1, 2, 3].map(|number| connect(&capacity, &format!("10.0.0.{number}:1")).0.unwrap());
    let mut held = connections.each_ref().map(|connection| call(connection, None));
    held[0].raise(19_000).unwrap();
    held[1].raise(21_000).unwrap();
    assert!(refusal(held[2].raise(5_000)).ends_with("are open"));
}

#[test]
fn received_bytes_are_counted_once_and_no_longer_than_their_call() {
    let capacity = Capacity::new(&large(), None);
    let identity = capacity.identities.of(Identity::authenticated("token:a"));
    let one = connect(&capacity, "10.0.0.1:1").0.unwrap();
    let counted = || {
        let of_connection = one.answers.of_whole_connection().unwrap();
        assert_eq!(capacity.unsent.load(Ordering::Relaxed), of_connection);
        assert_eq!(one.peer.unsent.load(Ordering::Relaxed), of_connection);
        (of_connection, identity.unsent.load(Ordering::Relaxed))
    };
    let mut received = call(&one, None);
    let by = received.by();
    received.raise(4 << 10).unwrap();
    assert_eq!(counted(), (0, 0), "a small message is not counted");
    received.raise(5_000).unwrap();
    received.raise(4_500).unwrap();
    assert_eq!(counted(), (10_000, 0), "a buffer keeps its size");
    by.count_for(&identity);
    by.count_for(&identity);
    assert_eq!(
        counted(),
        (10_000, 10_000),
        "what has arrived before counts for the identity"
    );
    received.raise(6_000).unwrap();
    assert_eq!(counted(), (12_000, 12_000));
    drop(received);
    assert_eq!(counted(), (0, 0));
    by.count_for(&identity);
    assert_eq!(counted(), (0, 0), "the call has ended");
}

#[tokio::test(start_paused = true)]
async fn the_connection_with_the_most_received_bytes_ends_at_the_limit_of_the_server() {
    // Behind a proxy, the share of the address is all there is.
    for (peers, peer_share) in [
        (["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"], 50),
        (["10.0.0.1:1"; 3], 100),
    ] {
        let settings = Settings { peer_share, ..large() };
        let capacity = Capacity::new(&settings, None);
        let watched = capacity.clone();
        tokio::spawn(async move { watched.watch().await });
        let (small, small_cut) = connect(&capacity, peers[0]);
        let (large, large_cut) = connect(&capacity, peers[1]);
        let (last, last_cut) = connect(&capacity, peers[2]);
        let mut calls = [&small, &large, &last].map(|on| call(on.as_ref().unwrap(), None));
        calls[0].raise(19_000).unwrap();
        calls[1].raise(21_000).unwrap();
        assert!(calls[2].raise(5_000).is_err());
        sleep(STEP).await;
        assert!(large_cut.is_cancelled() && !small_cut.is_cancelled() && !last_cut.is_cancelled());
    }
}
