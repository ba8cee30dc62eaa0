//! Each condition under which the engine writes is left out in turn: a storm notices, or it says here why none does.
//!
//! The conditions are those that refuse a write in the storms, so a new one shows by itself.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use common::ensemble::mutants::{Condition, Kind, Role};
use common::storm::{Simulation, Weather, storm};

use crate::storm::{Trees, faults};

/// How many seeds show which conditions there are.
const SHOWN: u64 = if cfg!(feature = "soak") { 500 } else { 20 };
/// After so many seeds a condition is not held.
const SEEDS: u64 = if cfg!(feature = "soak") { 5_000 } else { 1_000 };

const ABSENT: &str = "no such node";
const THERE: &str = "the node is there already";
const OTHER: &str = "the node has another version";
const CHILDREN: &str = "the node has children";

/// The conditions without which a storm breaks a law.
const HELD: [(Kind, Role, &str); 12] = [
    (Kind::Check, Role::Fence, OTHER),
    (Kind::Check, Role::Base, OTHER),
    (Kind::Create, Role::Lock, THERE),
    (Kind::Create, Role::Request, THERE),
    (Kind::Set, Role::Fence, ABSENT),
    (Kind::Set, Role::Base, OTHER),
    (Kind::Set, Role::Holder, ABSENT),
    (Kind::Set, Role::Holder, OTHER),
    (Kind::Delete, Role::Lock, CHILDREN),
    (Kind::Delete, Role::Holder, ABSENT),
    (Kind::Delete, Role::Holder, OTHER),
    (Kind::Delete, Role::Waiter, ABSENT),
];

/// The others, and why no storm breaks a law without them.
const OTHERS: [(Kind, Role, &str, &str); 7] = [
    (
        Kind::Check,
        Role::Mint,
        OTHER,
        "the base is lowered too seldom: `model::zookeeper::tokens` holds it",
    ),
    (Kind::Create, Role::Directory, THERE, "somebody else has created it"),
    (Kind::Create, Role::Fence, THERE, "it is raised by the next operation"),
    (
        Kind::Set,
        Role::Request,
        OTHER,
        "two calls replace one record too seldom: `common::tree::versions` holds it",
    ),
    (Kind::Delete, Role::Fence, ABSENT, "the old session has expired"),
    (Kind::Delete, Role::Lock, ABSENT, "the next operation creates it"),
    (
        Kind::Create,
        Role::Waiter,
        ABSENT,
        "a tree has no child without a parent",
    ),
];

fn weathers() -> [Weather; 4] {
    let modes = |ttl| Weather {
        modes: true,
        ..faults(ttl)
    };
    [
        faults(3_600),
        modes(2),
        Weather {
            disturbs: true,
            ..modes(1)
        },
        Weather {
            deaths: true,
            ..faults(5)
        },
    ]
}

thread_local! {
    static IS_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// What a storm's panic says; such panics are not shown.
fn law_of(run: impl FnOnce()) -> Option<String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_EXPECTED.get() {
                usual(panic);
            }
        }));
    });
    IS_EXPECTED.set(true);
    let done = catch_unwind(AssertUnwindSafe(run));
    IS_EXPECTED.set(false);
    let panic = done.err()?;
    let text = panic.downcast_ref::<String>().map(String::as_str);
    Some(
        text.or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("a panic")
            .to_owned(),
    )
}

#[test]
fn each_condition_is_held_by_a_law_or_says_why_not() {
    let mut refused = BTreeSet::new();
    for (seed, weather) in (1..=SHOWN).flat_map(|seed| weathers().map(|weather| (seed, weather))) {
        let mut ensemble = None;
        let begin = || {
            let trees = Trees::begin(seed, true);
            ensemble = Some(trees.ensemble.clone());
            trees
        };
        storm(begin, seed, weather);
        refused.extend(ensemble.expect("it began").refused());
    }
    let known = HELD.map(|(kind, role, reason)| (kind, role, reason));
    let others = OTHERS.map(|(kind, role, reason, _)| (kind, role, reason));
    let is_unknown = |condition: &&Condition| {
        let of = (condition.kind, condition.role, condition.reason.as_str());
        !known.contains(&of) && !others.contains(&of)
    };
    let unknown: Vec<_> = refused.iter().filter(is_unknown).collect();
    assert!(unknown.is_empty(), "neither held nor explained: {unknown:#?}");
}

#[test]
fn a_storm_notices_each_condition_that_is_left_out() {
    let mut unnoticed = Vec::new();
    for (kind, role, reason) in HELD {
        let reason = reason.to_owned();
        let condition = Condition { kind, role, reason };
        let noticed = (1..=SEEDS)
            .flat_map(|seed| weathers().map(|weather| (seed, weather)))
            .find_map(|(seed, weather)| {
                let begin = || {
                    let trees = Trees::begin(seed, true);
                    trees.ensemble.ignore(condition.clone());
                    trees
                };
                Some((seed, law_of(|| _ = storm(begin, seed, weather))?))
            });
        match noticed {
            Some((seed, law)) => println!("{condition:?}: seed {seed}: {law:.120}"),
            None => unnoticed.push(condition),
        }
    }
    assert!(unnoticed.is_empty(), "nothing notices the lack of {unnoticed:#?}");
}
