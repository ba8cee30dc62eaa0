//! Each condition under which the engine writes is left out in turn: a storm notices, or it says here why none does.
//!
//! The conditions are those that refuse a write in the storms, so a new one shows by itself.

use std::collections::BTreeSet;

use common::ensemble::mutants::{Condition, Kind, Role};

use crate::storm::{run, weathers};

/// How many seeds show which conditions there are.
const SHOWN: u64 = if cfg!(feature = "soak") { 500 } else { 5 };
/// After so many seeds a condition is not held.
const SEEDS: u64 = if cfg!(feature = "soak") { 5_000 } else { 1_000 };

pub const ABSENT: &str = "no such node";
const THERE: &str = "the node is there already";
pub const OTHER: &str = "the node has another version";
const CHILDREN: &str = "the node has children";

type Name = (Kind, Role, &'static str);

/// The conditions of one kind of store.
struct Conditions {
    /// Those without which a storm breaks a law.
    held: &'static [Name],
    /// The same, but where only one storm of a hundred does: the soak looks for it.
    held_by_few: &'static [Name],
    /// The others, and why no storm breaks a law without them.
    others: &'static [(Name, &'static str)],
}

const SELDOM: &str = "two calls replace one record too seldom: `common::tree::versions` holds it";
const LOWERED: &str = "the base is lowered too seldom: `faults_zookeeper::lowered` holds it";
const RAISED_BY_TWO: &str = "two servers raise the base at once too seldom: `common::tree::versions` holds it";
const AT_ONCE: &str = "two servers seldom end one lease at once: `ended` holds it";
const MADE: &str = "somebody else has created it";
const RAISED: &str = "it is raised by the next operation";
const EXPIRED: &str = "the old session has expired";
const USED_AGAIN: &str = "one is seldom used again while it is deleted: `common::tree::versions` holds it";
const LATE: &str = "a late commit of a session that was replaced is seldom: `late` holds it";
const NO_COPY: &str = "an old copy lacks it, which has the same effect";

const ALL_OR_NONE: Conditions = Conditions {
    held_by_few: &[(Kind::Check, Role::Fence, OTHER), (Kind::Set, Role::Base, OTHER)],
    held: &[
        (Kind::Check, Role::Base, OTHER),
        (Kind::Create, Role::Lock, THERE),
        (Kind::Create, Role::Request, THERE),
        (Kind::Set, Role::Fence, ABSENT),
        (Kind::Set, Role::Holder, ABSENT),
        (Kind::Set, Role::Holder, OTHER),
        (Kind::Delete, Role::Lock, CHILDREN),
        (Kind::Delete, Role::Holder, OTHER),
        (Kind::Delete, Role::Waiter, ABSENT),
    ],
    others: &[
        ((Kind::Check, Role::Fence, ABSENT), LATE),
        ((Kind::Check, Role::Mint, OTHER), LOWERED),
        ((Kind::Create, Role::Directory, THERE), MADE),
        ((Kind::Create, Role::Fence, THERE), RAISED),
        ((Kind::Set, Role::Request, OTHER), SELDOM),
        ((Kind::Delete, Role::Fence, ABSENT), EXPIRED),
        ((Kind::Delete, Role::Lock, ABSENT), "the next operation creates it"),
        (
            (Kind::Create, Role::Waiter, ABSENT),
            "a tree has no child without a parent",
        ),
        (
            (Kind::Create, Role::Lock, ABSENT),
            "a tree has no child without a parent",
        ),
        ((Kind::Delete, Role::Holder, ABSENT), AT_ONCE),
        ((Kind::Delete, Role::Request, ABSENT), NO_COPY),
        ((Kind::Delete, Role::Request, OTHER), USED_AGAIN),
        ((Kind::Delete, Role::End, ABSENT), NO_COPY),
    ],
};

const INDEPENDENT: Conditions = Conditions {
    held_by_few: &[],
    held: &[
        (Kind::Check, Role::Fence, OTHER),
        (Kind::Check, Role::Base, OTHER),
        (Kind::Check, Role::Lock, THERE),
        (Kind::Create, Role::Lock, THERE),
        (Kind::Create, Role::Request, THERE),
        (Kind::Set, Role::Holder, ABSENT),
        (Kind::Set, Role::Holder, OTHER),
        (Kind::Delete, Role::Holder, OTHER),
        (Kind::Delete, Role::Waiter, ABSENT),
    ],
    others: &[
        ((Kind::Check, Role::Fence, ABSENT), LATE),
        (
            (Kind::Delete, Role::Lock, CHILDREN),
            "the next operation asks the same; `ALL_OR_NONE` holds it",
        ),
        ((Kind::Create, Role::Directory, THERE), MADE),
        ((Kind::Create, Role::Fence, THERE), RAISED),
        ((Kind::Set, Role::Fence, ABSENT), "etcd writes what is absent"),
        ((Kind::Set, Role::Base, OTHER), RAISED_BY_TWO),
        ((Kind::Set, Role::Request, OTHER), SELDOM),
        ((Kind::Delete, Role::Fence, ABSENT), EXPIRED),
        ((Kind::Delete, Role::Holder, ABSENT), AT_ONCE),
        ((Kind::Delete, Role::Request, ABSENT), NO_COPY),
        ((Kind::Delete, Role::Request, OTHER), USED_AGAIN),
        ((Kind::Delete, Role::End, ABSENT), NO_COPY),
    ],
};

fn each_is_held_or_explained<const INDEPENDENT: bool>(conditions: &Conditions) {
    let mut refused = BTreeSet::new();
    for (seed, weather) in (1..=SHOWN).flat_map(|seed| weathers().map(|weather| (seed, weather))) {
        let (ensemble, law) = run::<INDEPENDENT>(seed, weather, None);
        assert_eq!(law, None, "seed {seed}");
        refused.extend(ensemble.refused());
    }
    let others = conditions.others.iter().map(|(name, _)| name);
    let known: Vec<_> = conditions
        .held
        .iter()
        .chain(conditions.held_by_few)
        .chain(others)
        .collect();
    let is_unknown = |condition: &&Condition| {
        let of = (condition.kind, condition.role, condition.reason.as_str());
        !known.contains(&&of)
    };
    let unknown: Vec<_> = refused.iter().filter(is_unknown).collect();
    assert!(unknown.is_empty(), "neither held nor explained: {unknown:#?}");
}

fn each_is_noticed<const INDEPENDENT: bool>(conditions: &Conditions) {
    let mut unnoticed = Vec::new();
    let by_few = conditions.held_by_few.iter().filter(|_| cfg!(feature = "soak"));
    for (kind, role, reason) in conditions.held.iter().chain(by_few) {
        let (kind, role, reason) = (*kind, *role, (*reason).to_owned());
        let condition = Condition { kind, role, reason };
        let noticed = (1..=SEEDS)
            .flat_map(|seed| weathers().map(|weather| (seed, weather)))
            .find_map(|(seed, weather)| Some((seed, run::<INDEPENDENT>(seed, weather, Some(&condition)).1?)));
        match noticed {
            Some((seed, law)) => println!("{condition:?}: seed {seed}: {law:.120}"),
            None => unnoticed.push(condition),
        }
    }
    assert!(unnoticed.is_empty(), "nothing notices the lack of {unnoticed:#?}");
}

#[test]
fn each_condition_is_held_by_a_law_or_says_why_not() {
    each_is_held_or_explained::<false>(&ALL_OR_NONE);
}

#[test]
fn each_condition_of_independent_steps_is_held_by_a_law_or_says_why_not() {
    each_is_held_or_explained::<true>(&INDEPENDENT);
}

#[test]
fn a_storm_notices_each_condition_that_is_left_out() {
    each_is_noticed::<false>(&ALL_OR_NONE);
}

#[test]
fn a_storm_notices_each_condition_of_independent_steps_that_is_left_out() {
    each_is_noticed::<true>(&INDEPENDENT);
}
