//! A breadth-first walk through all states of a model.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hash, Hasher};

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
    let mut seen: HashSet<u64, BuildHasherDefault<Same>> = HashSet::default();
    seen.insert(hash(&start));
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
    let mut mix = Mix(0x1234_5678_9abc_def1);
    state.hash(&mut mix);
    mix.finish()
}

/// A hash of 64 bits for states, which are hundreds of small numbers: SipHash takes twice the time of all else.
struct Mix(u64);

impl Mix {
    const ODD: [u64; 2] = [0x517c_c1b7_2722_0a95, 0xd6e8_feb8_6659_fd93];

    fn add(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(5) ^ word).wrapping_mul(Self::ODD[0]);
        self.0 = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        let round = |hash: u64| (hash ^ (hash >> 32)).wrapping_mul(Self::ODD[1]);
        let hash = round(round(self.0));
        hash ^ (hash >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.add(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }
}

/// What is a hash already is not hashed again.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only hashes are kept");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
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
