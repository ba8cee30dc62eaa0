//! What a server whose wall clock was wrong has left behind.

use std::time::Duration;

use fencepost::error::Error;
use fencepost::locks::{Lease, Locks};
use fencepost::name::FencingToken;

use crate::clients::{acquire, take, token};
use crate::harness::{Operator, READY, ROOT, name, nothing_is_left, replica, store};

const TTL: Duration = Duration::from_secs(60);
const DAY: u64 = 86_400_000_000;

/// Bases that a server wrote in the years 2326 and 2255, and the largest that there is.
const RUINED: [u64; 3] = [11_234_000_000_000_000, FencingToken::MAX - 1_000, u64::MAX];

async fn base(operator: &mut Operator) -> u64 {
    let data = operator.read(&format!("{ROOT}/base")).await;
    u64::from_be_bytes(data.try_into().expect("a number"))
}

/// Writes a base, and a last grant under it.
async fn ruin(operator: &mut Operator, base: u64) {
    for node in ["base", "mint"] {
        operator.write(&format!("{ROOT}/{node}"), &base.to_be_bytes()).await;
    }
}

// G79
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_beyond_the_range_of_tokens_is_replaced_at_the_start_of_a_server() {
    let Some(store) = store(1) else { return };
    let mut operator = Operator::open(&store).await;
    let locks = replica(&store).await;
    let mut last = token(&take(&locks, "first", TTL).await);
    let right = base(&mut operator).await;
    locks.close().await;
    for (number, ruined) in RUINED.into_iter().enumerate() {
        ruin(&mut operator, ruined).await;
        let locks = replica(&store).await;
        let next = token(&take(&locks, &format!("lock{number}"), TTL).await);
        assert!(next > last, "{next} after {last}");
        last = next;
        assert!(base(&mut operator).await < right + DAY);
        locks.close().await;
    }
}

// G79
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_beyond_the_range_of_tokens_grants_nothing_and_is_replaced_while_a_server_runs() {
    let Some(store) = store(1) else { return };
    let mut operator = Operator::open(&store).await;
    let locks = replica(&store).await;
    let held = take(&locks, "a", TTL).await;
    let mut last = token(&held);
    for (number, ruined) in RUINED.into_iter().enumerate() {
        ruin(&mut operator, ruined).await;
        let next = token(&at_last(&locks, &format!("lock{number}")).await);
        assert!(next > last, "{next} after {last}");
        last = next;
    }
    locks.renew(&held.key, None).await.expect("it is held");
}

/// Acquires without a wait as soon as the store serves.
async fn at_last(locks: &Locks, lock: &str) -> Lease {
    let again = async {
        loop {
            match acquire(locks, lock, TTL, Duration::ZERO).await {
                Err(Error::Backend(error)) if error.is_transient() => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                held => return held.expect("it is free"),
            }
        }
    };
    tokio::time::timeout(READY, again).await.expect("it serves again")
}

/// Writes into the record of the only holder of a lock that its grant counted from this base.
async fn ruin_holder(operator: &mut Operator, lock: &str, from: u64, to: u64) {
    let path = operator.claim(lock, "h-").await;
    let mut record = operator.read(&path).await;
    let (from, to) = (varint(from), varint(to));
    let at = record
        .windows(from.len())
        .position(|bytes| bytes == from)
        .expect("the base is in the record");
    record.splice(at..at + from.len(), to);
    operator.write(&path, &record).await;
}

/// A number as records have it.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).expect("seven bits"));
    bytes
}

// G79
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_beyond_the_range_of_tokens_is_shown_can_be_forced_and_ends() {
    let Some(store) = store(1) else { return };
    let mut operator = Operator::open(&store).await;
    let dead = replica(&store).await;
    let from = base(&mut operator).await;
    for (lock, ttl) in [("forced", TTL), ("expired", Duration::from_secs(2))] {
        take(&dead, lock, ttl).await;
        ruin_holder(&mut operator, lock, from, RUINED[0]).await;
    }
    dead.close().await;
    let locks = replica(&store).await;
    let shown = locks.inspect(&name("forced"), 10).await.expect("it can be read");
    let largest = FencingToken::new(FencingToken::MAX).expect("a token");
    assert_eq!(shown.holders[0].token, largest);
    locks.force_release(&name("forced"), largest).await.expect("it is held");
    for lock in ["forced", "expired"] {
        let lease = acquire(&locks, lock, TTL, READY).await.expect("it is free");
        assert!(token(&lease) < FencingToken::MAX);
        locks.release(&lease.key).await.expect("it is held");
    }
    nothing_is_left(&store).await;
}
