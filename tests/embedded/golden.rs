//! A file that an earlier release wrote, read lock by lock: `golden/locks.hex`, and the ids of its leases in
//! `golden/leases`. Every release reads the files of those before it, or refuses their format; so a change with which this
//! test fails needs another number of the format.
//!
//! With `FENCEPOST_GOLDEN=write` in the environment the program runs and writes both anew.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use common::server::Server;
use common::session_client::SessionClient;
use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::mode::{Kind as ModeKind, Semaphore};
use fencepost::api::proto::{AcquireRequest, GetLockRequest, Mode as ApiMode, ReleaseRequest};
use fencepost::backend::PageRequest;
use fencepost::backend::embedded::Store;
use fencepost::error::Error;
use fencepost::locks::{Acquire, Locks};
use fencepost::name::{LeaseKey, Mode, RequestId};
use tonic::transport::Channel;

use crate::embedded::clients::name;
use crate::embedded::wall_clock::WrongWall;
use crate::embedded::{TTL, ask, locks, take};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/embedded/golden")
        .join(name)
}

const ROW: usize = 32;

/// The length of a file, and its rows of 32 bytes, each after its offset, without those that are like the row before.
fn to_hex(bytes: &[u8]) -> String {
    let mut text = format!("{:x}\n", bytes.len());
    let mut before: &[u8] = &[0; ROW];
    for (at, row) in bytes.chunks(ROW).enumerate() {
        if row != before {
            let hex: String = row.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "{:x} {hex}", at * ROW).expect("memory");
        }
        before = row;
    }
    text
}

fn from_hex(text: &str) -> Vec<u8> {
    let number = |text: &str| usize::from_str_radix(text, 16).expect("a number in hex");
    let mut lines = text.lines();
    let mut bytes = vec![0; number(lines.next().expect("the length"))];
    for line in lines {
        let (offset, row) = line.split_once(' ').expect("an offset and bytes");
        let row: Vec<u8> = (0..ROW).map(|at| number(&row[2 * at..2 * at + 2]) as u8).collect();
        // It lasts until the next line says otherwise.
        for rest in bytes[number(offset)..].chunks_mut(ROW) {
            rest.copy_from_slice(&row);
        }
    }
    bytes
}

/// What asks for a lock for the golden file.
fn request(lock: &str, request_id: &str) -> AcquireRequest {
    AcquireRequest {
        namespace: "jobs".into(),
        name: lock.into(),
        owner: "tester".into(),
        ttl: Some(TTL.try_into().expect("a short time")),
        request_id: request_id.into(),
        ..AcquireRequest::default()
    }
}

fn in_mode(lock: &str, kind: ModeKind) -> AcquireRequest {
    AcquireRequest {
        mode: Some(ApiMode { kind: Some(kind) }),
        ..request(lock, "")
    }
}

/// Runs the program on a new file, of which `golden` keeps the bytes and the leases.
async fn write_anew() {
    let home = tempfile::tempdir().expect("a folder");
    fs::write(
        home.path().join("f.toml"),
        "[namespaces.jobs]\nembedded.path = \"locks\"\n",
    )
    .expect("a file");
    let mut server = Server::start_with(
        &home,
        &["--listen", "127.0.0.1:0", "--config", "f.toml", "--data-dir", "."],
    );
    let client = LockServiceClient::connect(format!("http://{}", server.address))
        .await
        .expect("it accepts");
    let mut leases = String::new();
    let mut keep = |label: &str, lease_id: &str| writeln!(leases, "{label} {lease_id}").expect("memory");
    let ask_for = async |request| acquire(&client, request).await;
    let metadata = [("host".to_owned(), "a".to_owned())].into();
    let exclusive = AcquireRequest {
        metadata,
        ..request("exclusive", "retried")
    };
    keep("exclusive", &ask_for(exclusive).await);
    for label in ["shared-1", "shared-2"] {
        keep(
            label,
            &ask_for(in_mode("shared", ModeKind::Shared(Default::default()))).await,
        );
    }
    for (label, permits) in [("semaphore-2", 2), ("semaphore-1", 1)] {
        let mode = ModeKind::Semaphore(Semaphore { permits, limit: 4 });
        keep(label, &ask_for(in_mode("semaphore", mode)).await);
    }
    for label in ["hold-1", "hold-2"] {
        let reentrant = AcquireRequest {
            reentrant: true,
            ..request("reentrant", "")
        };
        keep(label, &ask_for(reentrant).await);
    }
    let (commands, sent) = SessionClient::commands();
    let events = client.clone().session(sent).await.expect("a session").into_inner();
    let mut session = SessionClient::opened(commands, events).await.expect("it is open");
    let attached = session
        .try_acquire(request("session", ""), true)
        .await
        .expect("it is free");
    keep("session", &attached.lease_id);
    let waits = tokio::spawn({
        let (client, wait) = (client.clone(), Some(TTL.try_into().expect("a short time")));
        let request = AcquireRequest {
            wait,
            ..request("exclusive", "waits")
        };
        async move { client.clone().acquire(request).await }
    });
    until_one_waits(&client).await;
    let released = ask_for(request("released", "ended")).await;
    client
        .clone()
        .release(ReleaseRequest {
            lease_id: released.clone(),
            keep_for: None,
        })
        .await
        .expect("it is held");
    // The highest token is one that nobody holds.
    keep("released", &released);
    server.stop();
    waits.await.expect("no panic").expect_err("the server is gone");
    assert!(server.end().success());
    fs::write(
        golden("locks.hex"),
        to_hex(&fs::read(home.path().join("locks")).expect("the file")),
    )
    .expect("written");
    fs::write(golden("leases"), leases).expect("written");
}

async fn acquire(client: &LockServiceClient<Channel>, request: AcquireRequest) -> String {
    let granted = client.clone().acquire(request).await.expect("it is free").into_inner();
    granted.lease.expect("a lease").lease_id
}

async fn until_one_waits(client: &LockServiceClient<Channel>) {
    loop {
        let request = GetLockRequest {
            namespace: "jobs".into(),
            name: "exclusive".into(),
        };
        let found = client.clone().get_lock(request).await.expect("it answers").into_inner();
        if found.lock.expect("a state").waiter_count == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A copy of the golden file, opened by a machine whose wall clock lost its time, and the leases in it.
struct Opened {
    _folder: tempfile::TempDir,
    locks: Locks,
    leases: HashMap<String, LeaseKey>,
}

impl Opened {
    fn golden() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("locks");
        let read = |name| fs::read_to_string(golden(name)).expect("a golden file");
        fs::write(&file, from_hex(&read("locks.hex"))).expect("a copy");
        let wall = SystemTime::UNIX_EPOCH;
        let store = Store::open_with_clock(&file, Arc::new(WrongWall { wall })).expect("the store opens");
        let leases = read("leases").lines().map(lease).collect();
        Self {
            _folder: folder,
            locks: locks(&store),
            leases,
        }
    }

    /// The holders of a lock are these leases in this mode, and nobody waits.
    async fn has_holders(&self, lock: &str, labels: &[&str], mode: Mode) {
        let queue = self.locks.inspect(&name(lock), 9).await.expect("the store answers");
        assert_eq!((queue.waiter_count, queue.holder_count), (0, labels.len()), "{queue:?}");
        for (holder, label) in queue.holders.iter().zip(labels) {
            assert_eq!(
                (holder.token, holder.mode),
                (self.leases[*label].token, mode),
                "{label}"
            );
            assert_eq!(
                (holder.claim, holder.owner.as_str()),
                (self.leases[*label].claim, "tester"),
                "{label}"
            );
            assert!(holder.remaining > TTL - Duration::from_secs(10), "{label}: {holder:?}");
        }
    }

    /// Each lease is renewed and given back, before which the lock refused this call.
    async fn is_held_by(&self, labels: &[&str], other: Acquire) {
        for label in labels {
            let refused = self
                .locks
                .acquire(other.clone())
                .await
                .map(|granted| granted.lease.clone());
            assert!(matches!(refused, Err(Error::LockHeld { .. })), "{label}: {refused:?}");
            let renewed = self.locks.renew(&self.leases[*label], None).await.expect("it is held");
            assert_eq!(renewed.ttl, TTL, "{label}");
            self.locks.release(&renewed.key).await.expect("it is held");
        }
        let next = take(&self.locks, other).await;
        let highest = self.leases["released"].token;
        assert!(next.key.token > highest, "{next:?} after {highest}");
    }
}

fn lease(line: &str) -> (String, LeaseKey) {
    let (label, id) = line.split_once(' ').expect("a label and a lease id");
    (label.into(), LeaseKey::parse(id).expect("a lease id"))
}

fn of_request(lock: &str, id: &str) -> Acquire {
    Acquire {
        request_id: Some(RequestId::new(id).expect("a request id")),
        ..ask(lock)
    }
}

// G81, G83, G170
#[tokio::test]
async fn each_lock_of_a_file_of_an_earlier_release_is_as_it_was() {
    if std::env::var("FENCEPOST_GOLDEN").is_ok_and(|mode| mode == "write") {
        write_anew().await;
    }
    let opened = Opened::golden();
    let locks = &opened.locks;
    let names: Vec<_> = locks
        .list("", PageRequest { after: None, size: 9 })
        .await
        .expect("it lists")
        .locks;
    let names: Vec<_> = names.iter().map(|found| found.lock.as_str()).collect();
    assert_eq!(names, ["exclusive", "reentrant", "semaphore", "session", "shared"]);

    opened.has_holders("exclusive", &["exclusive"], Mode::Exclusive).await;
    let queue = locks.inspect(&name("exclusive"), 9).await.expect("the store answers");
    assert_eq!(
        queue.holders[0].metadata.entries(),
        [("host".to_owned(), "a".to_owned())]
    );
    let retried = take(locks, of_request("exclusive", "retried")).await;
    assert_eq!(retried.key, opened.leases["exclusive"], "a retry has its lease");
    opened
        .is_held_by(&["exclusive"], of_request("exclusive", "waits"))
        .await;

    opened
        .has_holders("shared", &["shared-1", "shared-2"], Mode::Shared)
        .await;
    opened.is_held_by(&["shared-1", "shared-2"], ask("shared")).await;

    let semaphore = |permits| Mode::semaphore(permits, 4).expect("a good semaphore");
    let queue = locks.inspect(&name("semaphore"), 9).await.expect("the store answers");
    let permits: Vec<_> = queue.holders.iter().map(|holder| holder.mode).collect();
    assert_eq!(permits, [semaphore(2), semaphore(1)]);
    let all = Acquire {
        mode: semaphore(4),
        ..ask("semaphore")
    };
    opened.is_held_by(&["semaphore-2", "semaphore-1"], all).await;

    let queue = locks.inspect(&name("reentrant"), 9).await.expect("the store answers");
    assert_eq!((queue.holders.len(), queue.holders[0].holds), (1, 2));
    opened.is_held_by(&["hold-1", "hold-2"], ask("reentrant")).await;

    opened.has_holders("session", &["session"], Mode::Exclusive).await;
    opened.is_held_by(&["session"], ask("session")).await;

    let ended = locks
        .acquire(of_request("released", "ended"))
        .await
        .map(|granted| granted.lease.clone());
    assert_eq!(ended, Err(Error::AlreadyReleased));
    locks
        .release(&opened.leases["released"])
        .await
        .expect("a repeated release succeeds");
    take(locks, ask("released")).await;
}
