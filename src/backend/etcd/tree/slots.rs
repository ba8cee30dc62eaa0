//! The keys of a lock's children, which are used again.
//!
//! A child's key is `<lock>/<class><connection>-<slot>`: the class is `s` of a reader and `x` of any other child, and each
//! connection of each server numbers its own slots. So nobody else writes such a key, and one whose child is known to be
//! gone is free. The value is the child's name, a line feed, and its data. The path names the slot and the revision that
//! created it behind a `~`: no path is made twice.

use std::collections::{BTreeMap, HashMap};

use etcd_client::KeyValue;

/// The numbers of the appended nodes of one transaction are below this.
pub const TOGETHER: i64 = 128;

/// What a path is of.
pub enum Node<'a> {
    /// One that all others are under, which is not stored.
    Directory,
    /// A lock.
    Lock,
    /// A child of the lock with this prefix.
    Child {
        lock: &'a str,
        name: &'a str,
    },
    /// A session's node.
    Session,
    Other,
}

impl<'a> Node<'a> {
    /// The node of a path in the namespace at `root`.
    pub fn of(root: &str, path: &'a str) -> Self {
        let rest = path.strip_prefix(root).unwrap_or_default();
        let mut parts = rest.split('/').skip(1);
        match [parts.next(), parts.next(), parts.next(), parts.next()] {
            [None, ..] | [Some("c" | "f" | "l" | "s"), None, ..] | [Some("c" | "l"), Some(_), None, _] => {
                Self::Directory
            }
            [Some("s"), Some(_), None, None] => Self::Session,
            [Some("l"), Some(_), Some(_), None] => Self::Lock,
            [Some("l"), Some(_), Some(_), Some(name)] => Self::Child {
                lock: &path[..path.len() - name.len()],
                name,
            },
            _ => Self::Other,
        }
    }
}

/// The class of a child of this name.
fn class(name: &str) -> char {
    if name.split('-').nth(1).is_some_and(|mode| mode.starts_with('s')) {
        's'
    } else {
        'x'
    }
}

/// The end of the key of a child that a path names, and the revision that created it.
pub fn place(name: &str) -> Option<(&str, i64)> {
    let (suffix, created) = name.split_once('~')?.1.split_once('.')?;
    Some((suffix, i64::from_str_radix(created, 16).ok()?))
}

/// The name in the path of a child that is stored by this name.
pub fn name_of(stored: &str, suffix: &str, created: i64) -> String {
    match stored.rsplit_once('+') {
        Some((name, number)) => {
            let number = created * TOGETHER + number.parse::<i64>().unwrap_or(0);
            format!("{name}{number:010}~{suffix}.{created:x}")
        }
        None => format!("{stored}~{suffix}.{created:x}"),
    }
}

/// The name of a child in its path, and its data.
pub fn shown(kv: &KeyValue) -> (String, &[u8]) {
    let value = kv.value();
    let at = value.iter().position(|byte| *byte == b'\n').unwrap_or(value.len());
    let stored = String::from_utf8_lossy(&value[..at]);
    let key = kv.key_str().unwrap_or_default();
    let suffix = key.rsplit_once('/').map_or(key, |(_, suffix)| suffix);
    (
        name_of(&stored, suffix, kv.create_revision()),
        value.get(at + 1..).unwrap_or_default(),
    )
}

/// A child's value.
pub fn packed(name: &str, data: &[u8]) -> Vec<u8> {
    let stored = name.split('~').next().unwrap_or(name);
    [stored.as_bytes(), b"\n", data].concat()
}

/// What is known of a slot's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    /// It is being made, and was seen to end if it was made by this revision.
    Making(Option<i64>),
    /// This revision made it.
    Made(i64),
}

/// The slots of the present connection that are in use.
#[derive(Debug, Default)]
pub struct Slots {
    connection: String,
    used: HashMap<String, BTreeMap<u32, Slot>>,
}

impl Slots {
    /// Begins anew: nothing is known of the keys that were made over earlier connections.
    pub fn begin(&mut self, session: i64, generation: u64) {
        self.connection = format!("{session:x}g{generation:x}");
        self.used.clear();
    }

    /// Takes the end of a free key for a child of a lock.
    pub fn take(&mut self, lock: &str, name: &str) -> String {
        let used = self.used.entry(lock.to_owned()).or_default();
        // Readers and others have different keys, so they may as well have different numbers.
        let free = (0..).zip(used.keys()).find(|(number, used)| number != *used);
        let free = free.map_or_else(|| u32::try_from(used.len()).unwrap_or(u32::MAX), |(number, _)| number);
        used.insert(free, Slot::Making(None));
        format!("{}{}-{free:x}", class(name), self.connection)
    }

    fn number(&self, suffix: &str) -> Option<u32> {
        let rest = suffix.get(1..)?.strip_prefix(self.connection.as_str())?;
        u32::from_str_radix(rest.strip_prefix('-')?, 16).ok()
    }

    /// Whether what this revision made may still be there, as far as is known.
    pub fn may_be_there(&self, lock: &str, suffix: &str, created: i64) -> bool {
        let Some(number) = self.number(suffix) else { return true };
        match self.used.get(lock).and_then(|used| used.get(&number)) {
            Some(Slot::Made(made)) => *made == created,
            // An event may be ahead of the answer.
            Some(Slot::Making(_)) => true,
            None => false,
        }
    }

    /// Notes that a key was made by this revision, or not made.
    pub fn made(&mut self, lock: &str, suffix: &str, revision: Option<i64>) {
        let Some(number) = self.number(suffix) else { return };
        let Some(slot) = self.used.get_mut(lock).and_then(|used| used.get_mut(&number)) else {
            return;
        };
        match (revision, *slot) {
            (Some(revision), Slot::Making(ended)) if ended != Some(revision) => *slot = Slot::Made(revision),
            _ => self.free(lock, number),
        }
    }

    /// Notes that what this revision made is gone.
    pub fn gone(&mut self, lock: &str, suffix: &str, created: i64) {
        let Some(number) = self.number(suffix) else { return };
        match self.used.get_mut(lock).and_then(|used| used.get_mut(&number)) {
            Some(Slot::Making(ended)) => *ended = Some(created),
            Some(Slot::Made(made)) if *made == created => self.free(lock, number),
            _ => {}
        }
    }

    /// Notes that a lock had these children at a revision, and no others.
    pub fn listed(&mut self, lock: &str, children: &[(KeyValue, String)], revision: i64) {
        let Some(used) = self.used.get(lock) else { return };
        let is_gone = |slot: &Slot| match slot {
            Slot::Made(made) => *made <= revision && !children.iter().any(|(kv, _)| kv.create_revision() == *made),
            Slot::Making(_) => false,
        };
        let gone: Vec<u32> = used
            .iter()
            .filter(|(_, slot)| is_gone(slot))
            .map(|(number, _)| *number)
            .collect();
        gone.into_iter().for_each(|number| self.free(lock, number));
    }

    fn free(&mut self, lock: &str, number: u32) {
        if let Some(used) = self.used.get_mut(lock) {
            used.remove(&number);
            if used.is_empty() {
                self.used.remove(lock);
            }
        }
    }
}

/// The children of watched locks, by the prefix of the lock and the end of the key: a deletion tells only the key, and
/// etcd reads each node once more to tell its value.
#[derive(Debug, Default)]
pub struct Names(HashMap<String, HashMap<String, Key>>);

/// What is known of one key.
#[derive(Debug, Default)]
struct Key {
    /// The names of its children that are not known to be gone, by the revision that created them. A list may be ahead of
    /// the events, and then an earlier child is still here.
    there: BTreeMap<i64, String>,
    /// The last deletion that was told.
    deleted: i64,
}

impl Names {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Begins to keep the names of a lock's children.
    pub fn watch(&mut self, lock: String) {
        self.0.insert(lock, HashMap::new());
    }

    pub fn unwatch(&mut self, lock: &str) {
        self.0.remove(lock);
    }

    /// Notes a child that was created or changed, and returns its name.
    pub fn put(&mut self, lock: &str, suffix: &str, kv: &KeyValue) -> String {
        let name = shown(kv).0;
        if let Some(keys) = self.0.get_mut(lock) {
            let key = keys.entry(suffix.to_owned()).or_default();
            key.there.insert(kv.create_revision(), name.clone());
        }
        name
    }

    /// Notes that a child was deleted at a revision, and returns its name with the revision that created it, if they are
    /// known.
    pub fn deleted(&mut self, lock: &str, suffix: &str, revision: i64) -> Option<(String, i64)> {
        let key = self.0.get_mut(lock)?.entry(suffix.to_owned()).or_default();
        key.delete(revision)
    }

    /// Notes the children that a list shows. Returns the names of those whose deletion was told before.
    pub fn listed(&mut self, lock: &str, children: &[(KeyValue, String)]) -> Vec<String> {
        let mut gone = Vec::new();
        let Some(keys) = self.0.get_mut(lock) else { return gone };
        for (kv, name) in children {
            let suffix = kv
                .key_str()
                .ok()
                .and_then(|key| key.strip_prefix(lock))
                .unwrap_or_default();
            let key = keys.entry(suffix.to_owned()).or_default();
            gone.extend(key.show(name.clone(), kv.create_revision()));
        }
        gone
    }
}

impl Key {
    fn delete(&mut self, revision: i64) -> Option<(String, i64)> {
        self.deleted = self.deleted.max(revision);
        let later = self.there.split_off(&revision);
        let mut before = std::mem::replace(&mut self.there, later);
        before.pop_last().map(|(created, name)| (name, created))
    }

    /// A list shows this child. Returns its name if its deletion was told before.
    fn show(&mut self, name: String, created: i64) -> Option<String> {
        if created < self.deleted {
            return Some(name);
        }
        self.there.insert(created, name);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_used_again_once_its_child_is_gone() {
        let mut slots = Slots::default();
        slots.begin(7, 1);
        let first = slots.take("a/", "h-x-1");
        let second = slots.take("a/", "q-s-1");
        assert_eq!((first.as_str(), second.as_str()), ("x7g1-0", "s7g1-1"));
        slots.made("a/", &first, Some(5));
        assert!(slots.may_be_there("a/", &first, 5) && !slots.may_be_there("a/", &first, 4));
        assert!(slots.may_be_there("a/", "x8g1-0", 4), "another server's");
        slots.gone("a/", &first, 4);
        assert_eq!(
            slots.take("a/", "h-x"),
            "x7g1-2",
            "an earlier child of this key is gone"
        );
        slots.gone("a/", &first, 5);
        assert_eq!(slots.take("a/", "h-x"), "x7g1-0");
        slots.made("a/", &second, None);
        assert_eq!(slots.take("a/", "h-x"), "x7g1-1", "it was not made");
        slots.gone("a/", "x7g1-2", 9);
        slots.made("a/", "x7g1-2", Some(9));
        assert_eq!(slots.take("a/", "h-x"), "x7g1-2", "it ended before its answer came");
        slots.begin(7, 2);
        assert!(slots.used.is_empty());
    }

    #[test]
    fn a_deletion_is_of_the_child_before_it_also_if_a_list_was_ahead_of_it() {
        let mut key = Key::default();
        assert_eq!(key.show("first".into(), 5), None);
        assert_eq!(key.show("second".into(), 8), None, "the list is ahead of the events");
        assert_eq!(key.delete(7), Some(("first".into(), 5)));
        assert_eq!(
            key.show("first".into(), 5),
            Some("first".into()),
            "the list is behind them"
        );
        assert_eq!(key.delete(9), Some(("second".into(), 8)));
        assert_eq!(key.delete(11), None, "it is not known");
    }

    #[test]
    fn a_path_names_its_key() {
        let name = name_of("q-x-1-2-n-+3", "x7g1-0", 10);
        assert_eq!(name, "q-x-1-2-n-0000001283~x7g1-0.a");
        assert_eq!(place(&name), Some(("x7g1-0", 10)));
        assert_eq!(place("h-x"), None);
        for path in ["/r", "/r/n", "/r/n/l", "/r/n/f", "/r/n/l/0a", "/r/n/c/0a"] {
            assert!(matches!(Node::of("/r/n", path), Node::Directory), "{path}");
        }
        for path in ["/r/n/base", "/r/n/f/1-a", "/r/n/c/0a/r-1"] {
            assert!(matches!(Node::of("/r/n", path), Node::Other), "{path}");
        }
        assert!(matches!(Node::of("/r/n", "/r/n/l/0a/b"), Node::Lock));
        assert!(matches!(Node::of("/r/n", "/r/n/s/1"), Node::Session));
        assert!(matches!(
            Node::of("/r/n", "/r/n/l/0a/b/c"),
            Node::Child {
                lock: "/r/n/l/0a/b/",
                name: "c"
            }
        ));
    }
}
