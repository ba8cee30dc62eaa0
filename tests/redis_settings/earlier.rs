//! Locks of the release before, whose layout was 3, and of this one in one Redis: neither release grants a lock of the other.
//! `layout_3/keys` has the fields of the keys that its scripts wrote, in hex, and `layout_3/prelude.lua` is what each of its
//! scripts began with.

use std::collections::BTreeMap;

use fencepost::backend::record::store::FoundRoot;
use fencepost::backend::{
    AcquireOutcome, Backend, BackendError, Health, InspectLimit, NewClaim, PageRequest, ReleaseTarget, WaitPolicy,
};
use fencepost::name::{FencingToken, Kind, LeaseKey, LockKey, LockName, Metadata, Mode, Namespace};

use crate::kept::open_records;
use crate::long_queues::{claim, open};
use crate::servers::{RedisServer, available};

/// The claim that holds each lock, whose ids are all this number.
const HOLDERS: [(&str, u128); 4] = [("held", 1), ("shared", 2), ("semaphore", 4), ("queued", 6)];
/// The lock that was given back.
const RELEASED: &str = "released";

fn key(lock: &str) -> String {
    format!("fencepost:long:l:{lock}")
}

/// The keys of the release before.
fn write_keys(server: &RedisServer) {
    let mut locks = BTreeMap::<&str, Vec<&str>>::new();
    for line in include_str!("layout_3/keys").lines() {
        let mut words = line.split(' ');
        let lock = words.next().expect("a lock");
        locks.entry(lock).or_default().extend(words);
    }
    assert_eq!(locks.len(), HOLDERS.len() + 1);
    let write = "for at, hex in ipairs(ARGV) do \
                   ARGV[at] = hex:gsub('%x%x', function(byte) return string.char(tonumber(byte, 16)) end) \
                 end \
                 redis.call('ZADD', 'fencepost:long:names', 0, string.sub(KEYS[1], 18)) \
                 return redis.call('HSET', KEYS[1], unpack(ARGV))";
    for (lock, fields) in locks {
        let written = server.cli(&[&["EVAL", write, "1", &key(lock)], &fields[..]].concat());
        assert_eq!(written, (fields.len() / 2).to_string(), "{lock}");
    }
}

/// A digest of the fields of a lock's key; the order in which Redis has them changes as it likes.
fn digest(server: &RedisServer, lock: &str) -> String {
    let script = "local all, fields = redis.call('HGETALL', KEYS[1]), {} \
                  for at = 1, #all, 2 do fields[#fields + 1] = cmsgpack.pack(all[at], all[at + 1]) end \
                  table.sort(fields) \
                  return redis.sha1hex(table.concat(fields))";
    server.cli(&["EVAL", script, "1", &key(lock)])
}

/// What a script of the release before says of a lock before it does anything.
fn begins_earlier_script(server: &RedisServer, lock: &str) -> String {
    let script = format!(
        "#!lua\n{}\nlocal refused = start()\nif refused then return refused end\nreturn 'read'",
        include_str!("layout_3/prelude.lua")
    );
    server.cli(&["EVAL", &script, "1", &key(lock), "fencepost:long:", lock, "replica"])
}

fn lease(lock: &LockName, number: u128) -> LeaseKey {
    let claim = claim(number);
    LeaseKey {
        lock: LockKey {
            namespace: Namespace::new("long").expect("a good name"),
            name: lock.clone(),
        },
        kind: Kind::Exclusive,
        claim: claim.id,
        token: FencingToken::new(1).expect("a token"),
        secret: claim.secret,
    }
}

/// Asserts that each verb is refused because of the record's version, and that none has changed it.
async fn refuses(backend: &dyn Backend, server: &RedisServer, name: &str, holder: u128) {
    let lock = LockName::new(name).expect("a good name");
    let before = digest(server, name);
    let mut told = Vec::new();
    for mode in [
        Mode::Exclusive,
        Mode::Shared,
        Mode::semaphore(1, 9).expect("a good semaphore"),
    ] {
        for wait_policy in [WaitPolicy::Wait, WaitPolicy::NoWait] {
            let asks = NewClaim {
                mode,
                wait_policy,
                ..claim(100)
            };
            told.push(backend.acquire(&lock, &asks).await.map(drop));
        }
    }
    let (claim, lease) = (claim(holder), lease(&lock, holder));
    let retries = NewClaim {
        retryable: true,
        ..claim.clone()
    };
    told.push(backend.acquire(&lock, &retries).await.map(drop));
    told.push(backend.promote(&lock, &claim).await.map(drop));
    told.push(backend.renew(&lease, None).await.map(drop));
    told.push(backend.update_metadata(&lease, &Metadata::default()).await.map(drop));
    let targets = [
        ReleaseTarget::Hold(&lease),
        ReleaseTarget::Call(&claim.id, claim.call),
        ReleaseTarget::Forced(lease.token),
    ];
    for target in targets {
        told.push(backend.release(&lock, target, None).await.map(drop));
    }
    told.push(backend.inspect(&lock, InspectLimit::of_each(9)).await.map(drop));
    told.push(backend.holder(&lock, lease.token).await.map(drop));
    for told in told {
        assert!(
            matches!(&told, Err(BackendError::NotSent { reason })
                if reason.contains("the lock is stored in version 3, this is 4")),
            "{name}: {told:?}"
        );
    }
    assert_eq!(digest(server, name), before, "{name}");
}

// G98
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_on_a_lock_of_the_release_before_is_refused_and_changes_nothing() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    write_keys(&server);
    let backend = open(&server).await;
    for (lock, holder) in HOLDERS {
        assert_eq!(begins_earlier_script(&server, lock), "read", "{lock}");
        refuses(&*backend, &server, lock, holder).await;
    }
    refuses(&*backend, &server, RELEASED, 9).await;
    // It hides and holds up no lock of this release.
    let fresh = LockName::new("fresh").expect("a good name");
    let held = backend.acquire(&fresh, &claim(100)).await.expect("it is free");
    assert!(matches!(held, AcquireOutcome::Held(_)), "{held:?}");
    let page = PageRequest { after: None, size: 9 };
    let listed = backend.list("", page).await.expect("it lists").locks;
    assert_eq!(listed.iter().map(|found| &found.lock).collect::<Vec<_>>(), [&fresh]);
    assert_eq!(*backend.health().borrow(), Health::Serving);
    // Its name stays for the servers of its own release.
    let names = server.cli(&["ZCARD", "fencepost:long:names"]);
    assert_eq!(names, (HOLDERS.len() + 2).to_string());
    // As an operator is told to.
    server.cli(&["DEL", &key("held")]);
    let held = LockName::new("held").expect("a good name");
    let held = backend.acquire(&held, &claim(101)).await.expect("it is free");
    assert!(matches!(held, AcquireOutcome::Held(_)), "{held:?}");
}

// G98
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_the_release_before_that_goes_on_is_refused_by_every_lock_of_this_one() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let (backend, records) = (open(&server).await, open_records(&server).await);
    let [held, released, removed] =
        ["held", "released", "removed"].map(|lock| LockName::new(lock).expect("a good name"));
    for (number, lock) in (1..).zip([&held, &released, &removed]) {
        // A lock that no server has used yet is free for either release.
        assert_eq!(begins_earlier_script(&server, lock.as_str()), "read");
        let outcome = backend.acquire(lock, &claim(number)).await.expect("it is free");
        assert!(matches!(outcome, AcquireOutcome::Held(_)), "{outcome:?}");
    }
    let waits = backend.acquire(&held, &claim(4)).await.expect("it waits");
    assert!(matches!(waits, AcquireOutcome::Waiting(_)), "{waits:?}");
    for (number, lock) in [(2, &released), (3, &removed)] {
        let claim = claim(number);
        let target = ReleaseTarget::Call(&claim.id, claim.call);
        backend.release(lock, target, None).await.expect("it is held");
    }
    let idle = records.read(&removed, None).await.expect("it reads");
    let FoundRoot::Root(root) = idle.root else {
        panic!("it has a root: {idle:?}")
    };
    records
        .remove(&[(removed.clone(), root.version)], 1)
        .await
        .expect("it removes");
    for lock in [&held, &released, &removed].map(LockName::as_str) {
        let before = digest(&server, lock);
        let told = begins_earlier_script(&server, lock);
        assert!(
            told.contains("LAYOUT the lock is stored in version 4, this is 3"),
            "{lock}: {told}"
        );
        assert_eq!(digest(&server, lock), before, "{lock}");
    }
}
