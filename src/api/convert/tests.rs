use std::collections::BTreeMap;
use std::time::SystemTime;

use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::backend::LockSummary;
use crate::claim::{Holder, Queue, Waiter};
use crate::name::{ClaimId, Namespace};

const PAGES: Pages = Pages {
    default: 100,
    limit: 1000,
};

fn wire(seconds: i64, nanos: i32) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos }
}

fn plain() -> proto::AcquireRequest {
    proto::AcquireRequest {
        namespace: "default".into(),
        name: "a".into(),
        owner: "o".into(),
        ..Default::default()
    }
}

fn refused(change: impl FnOnce(&mut proto::AcquireRequest)) -> &'static str {
    let mut request = plain();
    change(&mut request);
    acquire(request, Identity::anonymous()).unwrap_err().field
}

fn semaphore(permits: u32, limit: u32) -> proto::Mode {
    let kind = proto::mode::Kind::Semaphore(proto::mode::Semaphore { permits, limit });
    proto::Mode { kind: Some(kind) }
}

#[test]
fn a_plain_acquire_is_an_exclusive_try() {
    let request = acquire(plain(), Identity::anonymous()).unwrap();
    assert_eq!(
        (request.mode, request.ttl, request.wait),
        (Mode::Exclusive, None, Duration::ZERO)
    );
    assert!(request.request_id.is_none() && !request.reentrant && request.metadata.entries().is_empty());
}

#[test]
fn a_full_acquire_keeps_all_fields() {
    let request = proto::AcquireRequest {
        ttl: Some(wire(1, 500_000_000)),
        wait: Some(wire(3, 0)),
        mode: Some(semaphore(2, 5)),
        request_id: "r".into(),
        reentrant: true,
        metadata: BTreeMap::from([("k".into(), "v".into())]),
        ..plain()
    };
    let request = acquire(request, Identity::anonymous()).unwrap();
    assert_eq!(request.mode, Mode::semaphore(2, 5).unwrap());
    assert_eq!(
        (request.ttl, request.wait),
        (Some(Duration::from_millis(1500)), Duration::from_secs(3))
    );
    assert_eq!(request.request_id.unwrap().as_str(), "r");
    assert_eq!(request.metadata.entries(), [("k".to_owned(), "v".to_owned())]);
    assert!(request.reentrant);
}

// G67a
#[test]
fn every_bad_field_is_named() {
    assert_eq!(
        acquire(Default::default(), Identity::anonymous()).unwrap_err().field,
        "name"
    );
    assert_eq!(refused(|request| request.name = "x".repeat(513)), "name");
    assert_eq!(refused(|request| request.owner.clear()), "owner");
    assert_eq!(refused(|request| request.owner = "a\u{7}".into()), "owner");
    assert_eq!(refused(|request| request.request_id = "x".repeat(129)), "request_id");
    assert_eq!(
        refused(|request| request.mode = Some(proto::Mode { kind: None })),
        "mode"
    );
    assert_eq!(
        refused(|request| request.mode = Some(semaphore(0, 1))),
        "mode.semaphore.permits"
    );
    assert_eq!(
        refused(|request| request.mode = Some(semaphore(1, 1_000_001))),
        "mode.semaphore.limit"
    );
    assert_eq!(refused(|request| request.ttl = Some(wire(0, 0))), "ttl");
    assert_eq!(refused(|request| request.ttl = Some(wire(-1, 0))), "ttl");
    assert_eq!(refused(|request| request.wait = Some(wire(0, -1))), "wait");
    let many = (0..17).map(|n| (n.to_string(), String::new())).collect();
    assert_eq!(refused(|request| request.metadata = many), "metadata");
}

#[test]
fn a_duration_is_normalised_in_range_and_not_negative() {
    for (seconds, nanos) in [(0, 0_i32), (1, 999_999_999), (MAX_SECONDS, 999_999_999)] {
        let expected = Duration::new(seconds.unsigned_abs(), nanos.unsigned_abs());
        assert_eq!(duration("wait", wire(seconds, nanos)), Ok(expected));
    }
    for (seconds, nanos) in [
        (0, 1_000_000_000),
        (1, -1),
        (-1, 1),
        (-1, 0),
        (0, -1),
        (MAX_SECONDS + 1, 0),
        (i64::MIN, i32::MIN),
        (i64::MAX, i32::MAX),
    ] {
        assert_eq!(
            duration("wait", wire(seconds, nanos)).unwrap_err().field,
            "wait",
            "{seconds} {nanos}"
        );
    }
}

#[test]
fn a_page_has_a_default_and_a_largest_size() {
    for (asked, size) in [(0, 100), (1, 1), (1000, 1000), (i32::MAX, 1000)] {
        assert_eq!(page(asked, "", "", PAGES), Ok(PageRequest { after: None, size }));
    }
    assert_eq!(page(-1, "", "", PAGES).unwrap_err().field, "page_size");
}

#[test]
fn a_page_token_that_was_not_issued_is_refused() {
    let long = format!("1{}", "a".repeat(MAX_PAGE_TOKEN_BYTES));
    for token in [
        "a",
        "2a",
        "1%",
        "1%zz",
        "1a/b",
        "1%61",
        "1%FF",
        "1%c3%bc",
        long.as_str(),
    ] {
        assert_eq!(
            page(0, token, "", PAGES).unwrap_err().field,
            "page_token",
            "{token:.20}"
        );
    }
    assert_eq!(page_token(None), "");
}

#[test]
fn a_page_token_is_valid_only_for_its_prefix() {
    for (after, prefix, is_valid) in [
        ("b/1", "b/", true),
        ("b/", "b/", true),
        ("", "b/", false),
        ("a/9", "b/", false),
    ] {
        let page = page(0, &page_token(Some(after)), prefix, PAGES);
        assert_eq!(
            page.map(|page| page.after).ok(),
            is_valid.then(|| Some(after.to_owned())),
            "{after}"
        );
    }
}

proptest! {
    #[test]
    fn a_page_token_decodes_to_its_name(next in "\\PC{0,80}") {
        let token = page_token(Some(&next));
        prop_assert_eq!(page(0, &token, "", PAGES), Ok(PageRequest { after: Some(next), size: PAGES.default }));
    }
}

#[test]
fn a_prefix_and_a_node_have_bounds() {
    assert_eq!(prefix(""), Ok(""));
    assert_eq!(prefix(&"x".repeat(513)).unwrap_err().field, "prefix");
    assert_eq!(prefix("a\n").unwrap_err().field, "prefix");
    assert_eq!((node(""), node("a")), (Ok(None), Ok(Some("a"))));
    assert_eq!(node(&"x".repeat(257)).unwrap_err().field, "node");
    assert_eq!(lock_and_token("a", 0).unwrap_err().field, "fencing_token");
    assert_eq!(lock_and_token("", 1).unwrap_err().field, "name");
}

fn big_holder() -> Holder {
    Holder {
        claim: ClaimId::from_bytes([1; 16]),
        owner: Owner::new(&"o".repeat(256)).unwrap(),
        identity: Identity::anonymous(),
        mode: Mode::Shared,
        token: FencingToken::new(FencingToken::MAX).unwrap(),
        remaining: Duration::from_secs(1),
        holds: 1,
        metadata: Metadata::new([("k".into(), "v".repeat(4000))]).unwrap(),
        since: SystemTime::now(),
    }
}

fn big_waiter() -> Waiter {
    let Holder {
        claim,
        owner,
        identity,
        mode,
        metadata,
        since,
        ..
    } = big_holder();
    Waiter {
        claim,
        owner,
        identity,
        mode,
        metadata,
        since,
    }
}

// G38
#[test]
fn a_long_queue_fits_into_its_message_and_is_counted_in_full() {
    let queue = Queue {
        holders: vec![big_holder(); 20],
        waiters: vec![big_waiter(); 20],
        holder_count: 20,
        waiter_count: 2000,
    };
    let (namespace, name) = (Namespace::new("n").unwrap(), LockName::new("l").unwrap());
    let bounds = Bounds::of(&Settings {
        response_bytes: 128 << 10,
        ..Settings::default()
    });
    let state = lock_state(&namespace, &name, &queue, bounds);
    assert!(state.encoded_len() <= 128 << 10, "{}", state.encoded_len());
    assert_eq!(state.holders.len(), 20);
    assert!((1..20).contains(&state.waiters.len()), "{}", state.waiters.len());
    assert_eq!((state.holder_count, state.waiter_count), (20, 2000));
    let bounds = Bounds::of(&Settings {
        state_bytes: 32 << 10,
        ..Settings::default()
    });
    let state = lock_state(&namespace, &name, &queue, bounds);
    assert!(state.encoded_len() <= 33 << 10, "{}", state.encoded_len());
    assert!((1..20).contains(&state.holders.len()), "{}", state.holders.len());
    assert_eq!((state.holder_count, state.waiter_count), (20, 2000));
}

#[test]
fn no_more_claims_are_returned_than_the_bound() {
    let queue = Queue {
        holders: vec![big_holder(); 3],
        waiters: vec![big_waiter(); 3],
        ..Queue::default()
    };
    let (namespace, name) = (Namespace::new("n").unwrap(), LockName::new("l").unwrap());
    let state = lock_state(
        &namespace,
        &name,
        &queue,
        Bounds {
            claims: 2,
            bytes: 1 << 20,
        },
    );
    assert_eq!((state.holders.len(), state.waiters.len()), (2, 2));
}

#[test]
fn the_largest_page_fits_into_an_answer() {
    let lock = LockSummary {
        lock: LockName::new(&"n".repeat(512)).unwrap(),
        holders: usize::MAX,
        waiters: usize::MAX,
        first: Some(big_holder()),
    };
    for (response_bytes, page_limit, fits) in [(4 << 20, 1000, 1000), (64 << 10, 10_000, 56)] {
        let settings = Settings {
            response_bytes,
            page_limit,
            ..Settings::default()
        };
        let size = Pages::of(&settings).limit;
        assert_eq!(size, fits);
        let page = proto::ListLocksResponse {
            locks: vec![summary(&lock); size],
            next_page_token: page_token(Some(&"ü".repeat(256))),
        };
        assert!(page.encoded_len() < response_bytes, "{}", page.encoded_len());
        assert_eq!(page.locks[0].waiter_count, u32::MAX);
    }
}
