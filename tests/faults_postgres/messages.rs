//! Messages between servers, and their beats.

use std::time::Duration;

use fencepost::backend::record::store::{Commit, Heard, Message, RecordStore, ServerId};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::timeout;

use crate::harness::{READY, applied, first, name, random, records, settings};
use crate::servers::{Postgres, available};

/// What is sent until it is heard.
const QUESTION: &[u8] = b"are you there?";

/// The next of a stream that is no gap, and no question.
async fn heard(messages: &mut BoxStream<'static, Heard>) -> Heard {
    loop {
        match timeout(READY, messages.next())
            .await
            .expect("in time")
            .expect("it goes on")
        {
            Heard::Gap => {}
            Heard::Message(_, _, body) if body == QUESTION => {}
            message @ Heard::Message(..) => return message,
        }
    }
}

/// Waits until messages to a server are heard.
async fn is_heard(records: &dyn RecordStore, to: ServerId, messages: &mut BoxStream<'static, Heard>) {
    for attempt in 0.. {
        let body = QUESTION.to_vec();
        let commit = Commit {
            messages: vec![Message { to, body }],
            ..first(&format!("attempt {}", random()))
        };
        applied(records.commit(commit).await);
        if timeout(Duration::from_millis(500), messages.next()).await.is_ok() {
            return;
        }
        assert!(attempt < 100, "nothing is heard");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_carries_the_stamp_of_its_commit_and_one_that_is_too_long_no_body() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    let (one, other) = (records(settings(&server)).await, records(settings(&server)).await);
    let to = ServerId(random());
    let mut messages = one.messages(to);
    is_heard(&*other, to, &mut messages).await;
    for (sent, body) in [(b"hello".to_vec(), b"hello".to_vec()), (vec![7; 9_000], Vec::new())] {
        let lock = format!("lock {}", sent.len());
        let commit = Commit {
            messages: vec![
                Message { to, body: sent },
                Message {
                    to: ServerId(random()),
                    body: b"another's".to_vec(),
                },
            ],
            ..first(&lock)
        };
        let stamp = applied(other.commit(commit).await);
        assert_eq!(heard(&mut messages).await, Heard::Message(name(&lock), stamp, body));
    }
    // A refused commit sends none: the next message is that of the commit behind it.
    let refused = Commit {
        messages: vec![Message {
            to,
            body: b"refused".to_vec(),
        }],
        ..first("lock 5")
    };
    crate::harness::refused(other.commit(refused).await);
    let last = Commit {
        messages: vec![Message {
            to,
            body: b"last".to_vec(),
        }],
        ..first("last")
    };
    let stamp = applied(other.commit(last).await);
    assert_eq!(
        heard(&mut messages).await,
        Heard::Message(name("last"), stamp, b"last".to_vec())
    );
    one.close().await;
    let mut rest = messages.filter(|heard| std::future::ready(*heard != Heard::Gap));
    assert_eq!(timeout(READY, rest.next()).await.expect("in time"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_is_a_gap() {
    common::skip_unless!(available());
    let mut server = Postgres::started(&[]);
    let records = records(settings(&server)).await;
    let to = ServerId(random());
    let mut messages = records.messages(to);
    is_heard(&*records, to, &mut messages).await;
    server.restart();
    let next = timeout(READY, messages.next()).await.expect("in time");
    assert_eq!(next, Some(Heard::Gap));
    is_heard(&*records, to, &mut messages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_rise_with_each_beat_and_those_that_stand_still_are_removed() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    let (one, other) = (records(settings(&server)).await, records(settings(&server)).await);
    let (first, second) = (ServerId(random()), ServerId(random()));
    let counter =
        |all: &[(ServerId, u64)], of: ServerId| all.iter().find(|(id, _)| *id == of).map(|(_, counter)| *counter);
    let begun = one.beat(first).await.expect("it beats");
    assert_eq!(begun.len(), 1);
    let both = other.beat(second).await.expect("it beats");
    assert_eq!(counter(&both, first), counter(&begun, first));
    let again = one.beat(first).await.expect("it beats");
    assert_eq!(
        counter(&again, first),
        counter(&begun, first).map(|counter| counter + 1)
    );
    assert_eq!(again.len(), 2);
    server.sql("UPDATE fencepost_server SET time = time - 7200000000");
    one.beat(first).await.expect("it beats");
    let left = one.beat(first).await.expect("it beats");
    assert_eq!(left.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [first]);
    // One that was removed by mistake is seen to rise.
    let back = other.beat(second).await.expect("it beats");
    assert!(counter(&back, second) > counter(&both, second), "{back:?} {both:?}");
    assert!(one.poll() >= Duration::from_millis(100), "messages need no short poll");
}
