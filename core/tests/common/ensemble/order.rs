//! The law of a queue's order: nobody is granted before a waiter that it does not fit beside, and a waiter that is replaced
//! keeps its place.
//!
//! It looks at each commit, for only there it is known who waits ahead.

use super::mutants::Role;
use super::nodes::{Change, Happened, Nodes};
use fencepost_core::name::Mode;

use crate::storm::fit;

/// A child of a lock, as its name says.
#[derive(Debug, Clone)]
struct Child {
    claim: String,
    mode: Mode,
    /// Its place in the queue, if it waits.
    place: Option<i64>,
}

impl Child {
    fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('~').next()?.split('-');
        let (kind, mode, claim) = (parts.next()?, parts.next()?, parts.next()?.to_owned());
        let mode = match mode.split('_').next()? {
            "x" => Mode::Exclusive,
            "s" => Mode::Shared,
            permits => {
                let (permits, limit) = permits.strip_prefix('p')?.split_once('.')?;
                Mode::semaphore(permits.parse().ok()?, limit.parse().ok()?).ok()?
            }
        };
        let (place, sequence) = (parts.nth(1)?, parts.next());
        let place = match (kind, place) {
            ("q", "n") => Some(sequence?.parse().ok()?),
            ("q", adopted) => Some(i64::from_str_radix(adopted, 16).ok()?),
            _ => None,
        };
        Some(Self { claim, mode, place })
    }

    fn of(path: &str) -> Option<Self> {
        let name = matches!(Role::of(path), Role::Holder | Role::Waiter).then_some(path)?;
        Self::parse(name.rsplit('/').next()?)
    }
}

/// What a commit with these changes, which are applied, did against the order of a queue.
pub fn broken(nodes: &Nodes, changes: &[Change]) -> Option<String> {
    let of_kind = |kind| changes.iter().filter(move |change| change.happened == Some(kind));
    let removed: Vec<_> = of_kind(Happened::Deleted)
        .filter_map(|change| Child::of(&change.path))
        .collect();
    let created: Vec<_> = of_kind(Happened::Created).map(|change| &change.path).collect();
    for path in &created {
        let Some(new) = Child::of(path) else { continue };
        let mut before = removed.iter().filter(|child| child.claim == new.claim);
        let place = before.clone().find_map(|child| child.place);
        match (new.place, place) {
            (Some(new), Some(place)) if new != place => {
                return Some(format!("{path} had the place {place}"));
            }
            // A hold that is granted anew has its place.
            (None, None) if before.next().is_some() => continue,
            (Some(_), _) => continue,
            (None, _) => {}
        }
        let lock = path.rsplit_once('/').map_or("", |(lock, _)| lock);
        let others = nodes.children(lock).into_iter();
        // Whoever joins the queue in the same commit is behind.
        let is_new = |name: &String| created.contains(&&format!("{lock}/{name}"));
        let is_ahead = |other: &Child| match (other.place, place) {
            (Some(other), Some(place)) => other < place,
            _ => true,
        };
        let ahead: Vec<_> = others
            .filter(|name| !is_new(name))
            .filter_map(|name| Child::parse(&name))
            .filter(is_ahead)
            .collect();
        let modes: Vec<_> = ahead.iter().map(|child| child.mode).collect();
        if !fit(new.mode, &modes) {
            return Some(format!("{path} was granted behind {ahead:?}"));
        }
    }
    None
}
