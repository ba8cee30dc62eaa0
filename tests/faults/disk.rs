//! A full disk: nothing is granted that is not durable, nothing answered is lost, and the server
//! serves again as soon as there is room.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use fencepost::api::proto::{AcquireRequest, Lease, ListLocksRequest};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::task::{JoinHandle, JoinSet};
use tonic::Code::Unavailable;

use crate::client::{Client, NAMESPACE, ask, refused, waiting};
use crate::server::{Home, Server};
use crate::small_disk::SmallDisk;

const QUEUE: &str = "queue";
const WAIT: Duration = Duration::from_secs(50);
/// Much metadata fills a file soon.
const METADATA: usize = 4_000;
/// More grants than the disk has room for.
const TOO_MANY: usize = 20_000;
const AT_ONCE: usize = 16;
/// How large a small disk is.
const SIZE: &str = "6m";
/// How long the disk stays full: longer than it takes until the file is tried anew.
const FULL_FOR: Duration = Duration::from_secs(2);
/// For how long the health of a store on a full disk is looked at.
const FLAPS_FOR: Duration = Duration::from_secs(10);
const ASK_EVERY: Duration = Duration::from_millis(100);

/// A disk that can be filled under a server.
trait Disk {
    fn fill(&self, server: &Server, file: &Path);
    fn free(&self, server: &Server);
}

/// A limit on how large a file of the process may get.
enum SizeLimit {
    /// It may not grow: what is free within it can still be written.
    AsItIs,
    /// Nothing can be written.
    Nothing,
}

fn limit_size(pid: Pid, current: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    prlimit(Some(pid), Resource::Fsize, Rlimit { current, maximum }).expect("its limit is set");
}

impl Disk for SizeLimit {
    fn fill(&self, server: &Server, file: &Path) {
        let size = match self {
            Self::AsItIs => file.metadata().expect("a file").len(),
            Self::Nothing => 0,
        };
        limit_size(server.pid(), Some(size));
    }

    fn free(&self, server: &Server) {
        limit_size(server.pid(), getrlimit(Resource::Fsize).maximum);
    }
}

impl Disk for SmallDisk {
    fn fill(&self, _: &Server, _: &Path) {
        SmallDisk::fill(self);
    }

    fn free(&self, _: &Server) {
        SmallDisk::free(self);
    }
}

fn big(name: &str) -> AcquireRequest {
    AcquireRequest {
        metadata: [("much".to_owned(), "x".repeat(METADATA))].into(),
        ..ask(name, "somebody")
    }
}

/// Takes locks, several at once, until each of those is refused: the leases that were answered.
async fn take_until_refused(client: &Client) -> Vec<Lease> {
    let mut kept = Vec::new();
    for turn in 0..TOO_MANY / AT_ONCE {
        let mut calls = JoinSet::new();
        for call in 0..AT_ONCE {
            let (client, lock) = (client.clone(), format!("lock {turn}-{call}"));
            calls.spawn(async move { client.try_acquire(big(&lock)).await });
        }
        let answers = calls.join_all().await;
        let before = kept.len();
        for answer in answers {
            match answer {
                Ok(lease) => kept.push(lease),
                full => refused(full, Unavailable, "BACKEND_UNAVAILABLE"),
            }
        }
        if kept.len() == before {
            return kept;
        }
    }
    panic!("the disk does not get full");
}

/// Asks on while the disk is full: only what was answered with a lease is kept.
async fn ask_while_full(client: &Client, kept: &mut Vec<Lease>) {
    let times = FULL_FOR.as_millis() / ASK_EVERY.as_millis();
    for time in 0..times {
        match client.try_acquire(big(&format!("full {time}"))).await {
            Ok(lease) => kept.push(lease),
            full => refused(full, Unavailable, "BACKEND_UNAVAILABLE"),
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Asserts that every lease that was answered is held, each with a token of its own.
async fn all_are_held(client: &Client, kept: &[Lease]) {
    let tokens: BTreeSet<u64> = kept.iter().map(|lease| lease.fencing_token).collect();
    assert_eq!(tokens.len(), kept.len(), "a token was given twice");
    for lease in kept {
        assert!(
            client.holds(lease).await,
            "a lease that was answered is lost: {}",
            lease.name
        );
    }
    let next = client.acquire(ask("the next", "somebody")).await;
    assert!(Some(&next.fencing_token) > tokens.last(), "a token fell");
    client.release(&next).await;
}

async fn begin_to_wait(client: &Client, owner: &str, waiters: u32) -> JoinHandle<Lease> {
    let (waiter, request) = (client.clone(), waiting(WAIT, ask(QUEUE, owner)));
    let call = tokio::spawn(async move { waiter.acquire(request).await });
    client.until_waiting(QUEUE, waiters).await;
    call
}

/// Fills the disk under a server with a holder and two waiters: the leases that were answered.
async fn fill(server: &mut Server, home: &Home, disk: &impl Disk) -> Vec<Lease> {
    let client = server.client();
    disk.fill(server, home.file());
    let mut kept = take_until_refused(&client).await;
    // A file that has room for little is tried anew twice a second, until much does not fit again.
    let mut more = 0..TOO_MANY;
    while !client.is_unavailable("").await {
        let name = format!("more {}", more.next().expect("it is seen to be away"));
        kept.extend(client.try_acquire(big(&name)).await.ok());
    }
    ask_while_full(&client, &mut kept).await;
    assert!(server.lives());
    kept
}

async fn fills_and_recovers(home: Home, disk: impl Disk, kind: &str) {
    let mut server = home.start().await;
    let client = server.client();
    let holder = client.acquire(ask(QUEUE, "first")).await;
    let second = begin_to_wait(&client, "second", 1).await;
    let third = begin_to_wait(&client, "third", 2).await;
    let mut kept = fill(&mut server, &home, &disk).await;
    disk.free(&server);
    let freed = std::time::Instant::now();
    client.until_serving().await;
    println!(
        "{} grants, then the disk was full, {kind}; served again after {:?}",
        kept.len(),
        freed.elapsed()
    );
    client.release(&holder).await;
    kept.push(second.await.expect("the waiter kept its place"));
    assert!(!third.is_finished(), "two hold the lock");
    all_are_held(&client, &kept).await;
    third.abort();
    server.kill();
    all_are_held(&home.start().await.client(), &kept).await;
}

async fn fills_and_is_killed(home: Home, disk: impl Disk) {
    let mut server = home.start().await;
    let mut kept = vec![server.client().acquire(ask(QUEUE, "first")).await];
    kept.extend(fill(&mut server, &home, &disk).await);
    disk.free(&server);
    server.kill();
    all_are_held(&home.start().await.client(), &kept).await;
}

fn on(disk: &SmallDisk) -> Home {
    Home::with_file_at(&disk.path().join("locks"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_grow_stops_grants_until_it_can() {
    fills_and_recovers(Home::with_file(), SizeLimit::AsItIs, "the file could not grow").await;
}

// G84
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_written_stops_grants_until_it_can() {
    fills_and_recovers(Home::with_file(), SizeLimit::Nothing, "nothing could be written").await;
}

// G84
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_grants_until_there_is_room() {
    match SmallDisk::mount(SIZE) {
        Some(disk) => fills_and_recovers(on(&disk), disk, "on a small disk").await,
        None => println!("skipped: this user may not mount a file system"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_survives_a_kill_on_a_full_disk() {
    fills_and_is_killed(Home::with_file(), SizeLimit::AsItIs).await;
    fills_and_is_killed(Home::with_file(), SizeLimit::Nothing).await;
    match SmallDisk::mount(SIZE) {
        Some(disk) => fills_and_is_killed(on(&disk), disk).await,
        None => println!("skipped in part: this user may not mount a file system"),
    }
}

/// Counts how often the health changes while locks are taken and released on a full disk: little fits now and then.
async fn flaps(home: Home, disk: impl Disk) -> usize {
    let server = home.start().await;
    let client = server.client();
    disk.fill(&server, home.file());
    let mut kept = take_until_refused(&client).await;
    let (began, mut changes, mut was_serving) = (std::time::Instant::now(), 0, true);
    while began.elapsed() < FLAPS_FOR {
        // As much as was just released fits again, and the next one does not.
        if let Some(lease) = kept.pop() {
            // It may not be released on a full disk.
            let _ = client.try_release(&lease).await;
        }
        for name in ["one", "two"] {
            let name = format!("{name} {}", kept.len());
            kept.extend(client.try_acquire(big(&name)).await.ok());
        }
        let serves = !client.is_unavailable("").await;
        changes += usize::from(serves != was_serving);
        was_serving = serves;
        tokio::time::sleep(ASK_EVERY / 2).await;
    }
    disk.free(&server);
    client.until_serving().await;
    changes
}

// G203
#[tokio::test(flavor = "multi_thread")]
async fn the_health_of_a_store_on_a_full_disk_seldom_changes() {
    let changes = match SmallDisk::mount(SIZE) {
        Some(disk) => flaps(on(&disk), disk).await,
        None => flaps(Home::with_file(), SizeLimit::AsItIs).await,
    };
    println!("the health changed {changes} times in {FLAPS_FOR:?}");
    assert!(changes <= 8, "{changes}");
}

// G84
#[tokio::test(flavor = "multi_thread")]
async fn locks_can_be_read_while_the_disk_is_full() {
    let Some(disk) = SmallDisk::mount(SIZE) else {
        return println!("skipped: this user may not mount a file system");
    };
    let home = on(&disk);
    let mut server = home.start().await;
    let client = server.client();
    let holder = client.acquire(ask(QUEUE, "first")).await;
    let waiter = begin_to_wait(&client, "second", 1).await;
    disk.fill();
    take_until_refused(&client).await;
    let (full, mut failed) = (std::time::Instant::now(), 0);
    for write in 0.. {
        if full.elapsed() > FULL_FOR {
            break;
        }
        // The reads after a write that failed show what was written before.
        let write = client.try_acquire(big(&format!("more {write}"))).await;
        failed += usize::from(write.is_err_and(|status| status.code() == Unavailable));
        assert!(client.holds(&holder).await);
        let queue = client.inspect(QUEUE).await;
        assert_eq!((queue.holder_count, queue.waiter_count), (1, 1));
        let list = ListLocksRequest {
            namespace: NAMESPACE.into(),
            prefix: QUEUE.into(),
            ..ListLocksRequest::default()
        };
        let listed = client.locks().list_locks(list).await.expect("a list").into_inner();
        assert_eq!(listed.locks.len(), 1);
    }
    assert!(failed > 0, "the disk is not full");
    assert!(server.lives());
    disk.free();
    client.until_serving().await;
    client.release(&holder).await;
    waiter.await.expect("the waiter kept its place");
}
