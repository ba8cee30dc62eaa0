//! The stored bytes. A change of them needs another [`FORMAT`].

use std::num::NonZeroU64;
use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::backend::record::ends::{Ended, Ends};
use crate::backend::record::store::ServerId;
use crate::claim::Cause;
use crate::name::Secret;
use crate::queue::{Claim, Expiry, Holding, NewClaim};

fn waiting(number: u8) -> Claim {
    let since = UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_001);
    Claim::waiting(&NewClaim::numbered(number), ReplicaId(5), since)
}

fn holding(number: u8, token: FencingToken, ends: Expiry) -> Claim {
    let mut claim = waiting(number);
    claim.stage = Stage::Holding(Holding {
        token,
        ends,
        span: Duration::ZERO,
        waited: true,
        holds: claim.waiting_for().cloned().into_iter().collect(),
        kept: None,
    });
    claim
}

/// A lock with a holder, another whose grant the commit decides, and a waiter.
fn record() -> LockRecord {
    let token = |number| FencingToken::new(number).expect("a token");
    let seconds = Duration::from_secs;
    let decided = holding(7, token(9), Expiry::at(seconds(3)));
    let open = holding(8, FencingToken::placeholder(0), Expiry::from_stamp(seconds(2)));
    let ended = Ended {
        secret: Secret::from_bytes([2; 16]),
        id: Some(ClaimId::from_bytes([3; 16])),
        token: token(8),
        cause: Cause::Released,
        at: seconds(1),
    };
    LockRecord {
        queue: LockState::restored([(1, decided), (2, open), (4, waiting(9))], 5, 3),
        token: 9,
        new_tokens: 1,
        ends: Ends {
            inline: [ended].into(),
            parts: 10..12,
            ages: [(11, 13)].into(),
            limit: 300,
            moved: Vec::new(),
        },
        marks: vec![(CallId::from_bytes([1; 16]), seconds(4))],
        watchers: vec![(ServerId(NonZeroU64::MIN), seconds(5))],
        changes: 6,
        log: [Version(NonZeroU64::MAX)].into(),
        ..LockRecord::default()
    }
}

#[test]
fn a_root_has_the_bytes_that_other_servers_read() {
    let mut record = record();
    let body = record.write();
    let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, include_str!("golden.hex").replace('\n', ""));
    let (log, rest) = split(&body).expect("this format");
    let (head, claims) = postcard::take_from_bytes::<RootRecord>(rest).expect("a head");
    let mut read = head.read(claims).expect("a record");
    read.log = log.collect();
    assert_eq!(read.write(), body);
}
