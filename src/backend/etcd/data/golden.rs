//! The stored keys and records, byte by byte. Servers of two releases share an etcd while servers are replaced, so a form
//! that changes here needs another token base, which keeps the release before from granting.

use std::time::{Duration, UNIX_EPOCH};

use crate::backend::NewClaim;
use crate::backend::etcd::data::key_suffixes::KeySuffix;
use crate::backend::etcd::data::keys::Keys;
use crate::backend::etcd::data::record::{Claim, End, Hold, Request};
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, Kind, LockName, Metadata, Mode, Namespace, Owner, Secret};
use crate::queue::claim_terms::ClaimTerms;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn waiting(mode: Mode) -> Claim {
    let since = UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_001);
    Claim {
        terms: ClaimTerms {
            owner: Owner::new("worker").unwrap(),
            mode,
            metadata: Metadata::new(vec![("host".into(), "a".into())]).unwrap(),
            ..ClaimTerms::of(&NewClaim::numbered(7), since)
        },
        ttl: Duration::from_millis(30_500),
        finished_limit: 300,
        place: 0x0102,
        ..Claim::of(&NewClaim::numbered(7))
    }
}

fn holding() -> Claim {
    let mut joined = Hold::of(&NewClaim::numbered(8));
    (joined.retryable, joined.adopted) = (true, true);
    let mut claim = Claim {
        base: 1_600_000_000_000_000,
        granted_ttl_s: 31,
        moving_to: 0x7fff_0000_0000_0001,
        not_poolable: true,
        place: 0,
        request_lease: 0x0a0b,
        ..waiting(Mode::semaphore(2, 3).unwrap())
    };
    claim.terms.reentrant = true;
    claim.holds.push(joined);
    claim
}

#[test]
fn each_key_has_its_place() {
    let keys = Keys::new("/fencepost", &Namespace::new("prod").unwrap());
    let (name, id) = (LockName::new("a/b").unwrap(), ClaimId::from_bytes([0xab; 16]));
    let suffix = KeySuffix::from_bytes([0xab; 16]);
    let lock = keys.lock(&name);
    let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
    let all = [
        (keys.sessions.base(), "token_base"),
        (keys.sessions.session(0x1f), "session/000000000000001f"),
        (
            keys.mark(CallId::from_bytes([1; 16])),
            "mark/01010101010101010101010101010101",
        ),
        (keys.request(id), "request/abababababababababababababababab"),
        (
            keys.end(&name, &Secret::from_bytes([2; 16])),
            "end/a/b\t02020202020202020202020202020202",
        ),
        (lock.all().to_owned(), "lock/a/b\t"),
        (text(&lock.behind()), "lock/a/b\n"),
        (
            lock.holder(Kind::Exclusive, suffix),
            "lock/a/b\th/x/abababababababababababababababab",
        ),
        (
            lock.holder(Kind::Semaphore, suffix),
            "lock/a/b\th/s/abababababababababababababababab",
        ),
        (
            lock.holder(Kind::Shared, suffix),
            "lock/a/b\th/r/abababababababababababababababab",
        ),
        (lock.waiter(suffix), "lock/a/b\tq/abababababababababababababababab"),
    ];
    for (key, golden) in all {
        assert_eq!(key, format!("/fencepost/prod/{golden}"));
    }
}

#[test]
fn each_record_has_its_bytes() {
    let [sevens, eights] = ["07", "08"].map(|byte| byte.repeat(3 * 16));
    let all = [waiting(Mode::Exclusive), waiting(Mode::Shared), holding()];
    assert_eq!(
        all.clone().map(|claim| hex(&claim.encode())),
        [
            format!(
                "0106776f726b65720000000104686f737401618180f9c0c1c482031e80cab5ee01ac020000000001{sevens}0000820200"
            ),
            format!(
                "0106776f726b65720001000104686f737401618180f9c0c1c482031e80cab5ee01ac020000000001{sevens}0000820200"
            ),
            format!(
                "0106776f726b657200020203010104686f737401618180f9c0c1c482031e80cab5ee01ac02808090bd90e6eb023e82808080808080ffff010102{sevens}0000{eights}0101009628"
            ),
        ]
    );
    assert!(
        all.iter()
            .all(|claim| Claim::decode(&claim.encode()).unwrap() == *claim)
    );
}

#[test]
fn each_record_of_a_request_has_its_bytes() {
    let token = FencingToken::new(1_700_000_000_000_009).unwrap();
    let ended = |cause| Request::Ended(End { cause, token });
    let holds = Request::Holds {
        secret: Secret::from_bytes([3; 16]),
        base: 1_600_000_000_000_000,
        suffix: KeySuffix::from_bytes([4; 16]),
    };
    let waits = Request::Waits(KeySuffix::from_bytes([5; 16]));
    let ended = [Cause::Released, Cause::Expired, Cause::Forced, Cause::Undone].map(ended);
    assert_eq!(
        ended.map(|request| hex(&request.encode())),
        ["00", "01", "02", "03"].map(|cause| format!("01{cause}8980f9c0c1c48203"))
    );
    let [threes, fours, fives] = ["03", "04", "05"].map(|byte| byte.repeat(16));
    assert_eq!(hex(&holds.encode()), format!("0104808090bd90e6eb02{threes}{fours}"));
    assert_eq!(hex(&waits.encode()), format!("010500{fives}"));
    let all = ended.iter().chain([&holds, &waits]);
    assert!(
        all.into_iter()
            .all(|request| Request::decode(&request.encode()).unwrap() == *request)
    );
}
