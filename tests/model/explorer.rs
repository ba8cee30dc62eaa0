//! A breadth-first walk through all states of a model.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

/// A world that changes step by step.
pub trait Model: Clone + Hash {
    /// What happens in it.
    type Event: Copy + Debug;
    /// All worlds that may follow, each with what happened.
    fn next(&self) -> Vec<(Self::Event, Self)>;
    /// What is wrong with this one.
    fn wrong(&self) -> Option<&'static str>;
}

/// What a walk found.
#[derive(Debug)]
pub enum Walked {
    /// All states were seen, so many, and none is wrong.
    Sound(usize),
    /// This is wrong, after these steps; so many states were seen until then.
    Broken(&'static str, Vec<String>, usize),
    /// There are more states than may be walked.
    Endless,
}

impl Walked {
    /// All is well, in more states than this: a world in which hardly anything can happen shows nothing.
    pub fn is_sound(&self, more_than: usize) {
        match self {
            Self::Sound(states) => {
                println!("{states} states");
                assert!(*states > more_than, "only {states} states: hardly anything can happen");
            }
            other => panic!("{other:#?}"),
        }
    }

    /// What is wrong was noticed, by what this says.
    pub fn is_noticed(&self, by: &str) {
        assert!(!by.is_empty(), "anything would do");
        match self {
            Self::Broken(wrong, way, states) => {
                println!("{states} states until {wrong}: {way:#?}");
                assert!(wrong.contains(by), "{wrong}: {way:#?}");
            }
            other => panic!("nothing was noticed: {other:?}"),
        }
    }
}

/// Walks through all states that follow from `start`, the nearest first. Those that were seen are
/// known by a hash of 64 bits: that two of some millions share one is not to be expected.
pub fn walk<M: Model>(start: M, most: usize) -> Walked {
    let mut seen = HashSet::from([hash(&start)]);
    // Where each state came from, and by what.
    let mut ways: Vec<(usize, Option<M::Event>)> = vec![(0, None)];
    let mut ahead = VecDeque::from([(0, start)]);
    while let Some((from, state)) = ahead.pop_front() {
        if let Some(wrong) = state.wrong() {
            return Walked::Broken(wrong, way_to(from, &ways), seen.len());
        }
        for (what, next) in state.next() {
            if !seen.insert(hash(&next)) {
                continue;
            }
            let id = ways.len();
            if id > most {
                return Walked::Endless;
            }
            ways.push((from, Some(what)));
            ahead.push_back((id, next));
        }
    }
    Walked::Sound(seen.len())
}

fn hash(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

fn way_to<E: Debug>(mut at: usize, ways: &[(usize, Option<E>)]) -> Vec<String> {
    let mut way = Vec::new();
    while let (from, Some(what)) = &ways[at] {
        way.push(format!("{what:?}"));
        at = *from;
    }
    way.reverse();
    way
}
