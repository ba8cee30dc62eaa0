//! A lock's children as one list showed them: an atomic snapshot, judged by the rule ([`crate::claim`]).
//!
//! A view is kept up by events in the safe direction only. A waiter that disappears may have become a holder, so only
//! the end of a holder removes an entry, and a new holder replaces the waiter of its call. Nothing else is added: what
//! comes later is behind every waiter of the view.

use super::child::Child;
use crate::claim::Prefix;
use crate::name::{CallId, ClaimId, Mode};

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct View {
    holders: Vec<Child>,
    /// In the order of the queue.
    waiters: Vec<Child>,
    /// How many other children there are. Each may be a claim of a later release, so no claim fits beside it.
    unknown: usize,
}

impl View {
    /// The view of these names.
    pub fn of(names: &[String]) -> Self {
        let children = names.iter().filter_map(|name| Child::parse(name));
        let (holders, mut waiters): (Vec<_>, Vec<_>) = children.partition(Child::holds);
        waiters.sort_by_key(|waiter| waiter.place());
        Self {
            unknown: names.len() - holders.len() - waiters.len(),
            holders,
            waiters,
        }
    }

    pub fn holders(&self) -> &[Child] {
        &self.holders
    }

    pub fn waiters(&self) -> &[Child] {
        &self.waiters
    }

    pub fn len(&self) -> usize {
        self.holders.len() + self.waiters.len() + self.unknown
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn children(&self) -> impl Iterator<Item = &Child> {
        self.holders.iter().chain(&self.waiters)
    }

    /// The child of a call.
    pub fn of_call(&self, call: CallId) -> Option<&Child> {
        self.children().find(|child| child.call == call)
    }

    /// The child of a claim.
    pub fn of_claim(&self, claim: &ClaimId) -> Option<&Child> {
        self.children().find(|child| child.claim == *claim)
    }

    /// Whether it has a child of this name.
    pub fn has(&self, name: &str) -> bool {
        self.children().any(|child| child.name == name)
    }

    /// The mode of a claim that a claim of this mode cannot share the lock with.
    pub fn mismatch(&self, mode: Mode) -> Option<Mode> {
        let mut modes = self.children().map(|child| child.mode);
        modes.find(|other| !other.mixes(mode))
    }

    /// The same for what is ahead of the waiter of this name.
    pub fn mismatch_ahead(&self, waiter: &str, mode: Mode) -> Option<Mode> {
        let ahead = self.children().take_while(|child| child.name != waiter);
        ahead.map(|child| child.mode).find(|other| !other.mixes(mode))
    }

    /// How many claims are ahead of a waiter.
    pub fn ahead(&self, waiter: &str) -> usize {
        self.children().take_while(|child| child.name != waiter).count()
    }

    /// Whether a claim of this mode would fit behind all others.
    pub fn admits(&self, mode: Mode) -> bool {
        if self.unknown > 0 {
            return false;
        }
        let mut prefix = Prefix::default();
        for child in self.children() {
            if !prefix.admits(child.mode) {
                return false;
            }
            prefix.push(child.mode);
        }
        prefix.admits(mode)
    }

    /// The waiters that may hold now, if the holder of this name were gone.
    pub fn next_without(&self, gone: Option<&str>) -> impl Iterator<Item = &Child> {
        let mut prefix = Prefix::default();
        let staying = self.holders.iter().filter(|holder| Some(holder.name.as_str()) != gone);
        staying.for_each(|holder| prefix.push(holder.mode));
        let is_known = self.unknown == 0;
        self.waiters.iter().take_while(move |waiter| {
            let fits = is_known && prefix.admits(waiter.mode);
            prefix.push(waiter.mode);
            fits
        })
    }

    /// Whether the waiter of this name may hold, if the holder `gone` were gone.
    pub fn is_next(&self, name: &str, gone: Option<&str>) -> bool {
        self.next_without(gone).any(|waiter| waiter.name == name)
    }

    /// A call was granted: its waiter, or its holder of another name, is replaced by this one.
    pub fn granted(&mut self, holder: &Child) {
        let known = self.len();
        self.holders.retain(|other| other.call != holder.call);
        self.waiters.retain(|other| other.call != holder.call);
        if self.len() < known {
            self.holders.push(holder.clone());
        }
    }

    /// A holder has ended. Whether it was known.
    pub fn ended(&mut self, name: &str) -> bool {
        let known = self.holders.len();
        self.holders.retain(|holder| holder.name != name);
        self.holders.len() < known
    }

    /// A waiter has left the queue, and was not granted.
    pub fn waiter_removed(&mut self, name: &str) {
        self.waiters.retain(|waiter| waiter.name != name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::NewClaim;

    fn holder(number: u8) -> String {
        Child::holder_name(&NewClaim::numbered(number), 0)
    }

    fn waiter(number: u8, sequence: i32) -> String {
        Child::waiter_prefix(&NewClaim::numbered(number), None) + &format!("{sequence:010}")
    }

    #[test]
    fn a_waiter_that_disappears_stays_until_it_is_known_that_it_does_not_hold() {
        let (a, b, c) = (holder(1), waiter(2, 5), waiter(3, 4));
        let mut view = View::of(&[b.clone(), a.clone(), c.clone()]);
        assert_eq!(view.len(), 3);
        assert!(view.is_next(&c, Some(&a)) && !view.is_next(&c, None) && !view.is_next(&b, Some(&a)));
        // The next one is granted: first its holder appears, then its waiter and the old holder disappear.
        view.granted(&Child::parse(&holder(3)).unwrap());
        assert!(view.ended(&a) && !view.ended(&a));
        assert!(!view.is_next(&b, None));
        assert!(view.ended(&holder(3)) && view.is_next(&b, None));
        view.granted(&Child::parse(&holder(9)).unwrap());
        assert_eq!(view.len(), 1, "an unknown holder is behind every waiter");
    }

    #[test]
    fn a_child_that_cannot_be_read_keeps_all_others_waiting() {
        let a = waiter(1, 1);
        let view = View::of(&["h-of-a-later-release".into(), a.clone()]);
        assert!(!view.is_next(&a, None) && !view.admits(Mode::Shared) && view.len() == 2);
        assert!(!View::of(&["x".into()]).is_empty());
    }

    fn in_mode(number: u8, mode: Mode) -> NewClaim {
        NewClaim {
            mode,
            ..NewClaim::numbered(number)
        }
    }

    #[test]
    fn the_smallest_limit_of_those_ahead_counts() {
        let holder = |number, limit| Child::holder_name(&in_mode(number, Mode::semaphore(1, limit).unwrap()), 0);
        let waiter = |number: u8, limit| {
            let new = in_mode(number, Mode::semaphore(1, limit).unwrap());
            Child::waiter_prefix(&new, None) + &format!("{number:010}")
        };
        let (small, wide) = (holder(1, 2), holder(2, 4));
        let (first, second) = (waiter(3, 4), waiter(4, 4));
        let view = View::of(&[small.clone(), wide.clone(), first.clone(), second.clone()]);
        assert!(!view.is_next(&first, None));
        assert!(view.is_next(&second, Some(&small)), "a limit of 4 is left");
        assert!(view.is_next(&first, Some(&wide)) && !view.is_next(&second, Some(&wide)));
        assert!(!view.admits(Mode::semaphore(1, 9).unwrap()));
        assert_eq!(view.mismatch(Mode::semaphore(1, 9).unwrap()), None);
    }

    #[test]
    fn only_claims_ahead_keep_a_waiter_of_another_kind_from_the_queue() {
        let of = |number: u8, sequence: i32, mode| {
            Child::waiter_prefix(&in_mode(number, mode), None) + &format!("{sequence:010}")
        };
        let semaphore = Mode::semaphore(1, 2).unwrap();
        let (first, second) = (of(1, 1, Mode::Shared), of(2, 2, semaphore));
        let view = View::of(&[second.clone(), first.clone()]);
        assert_eq!((view.ahead(&first), view.ahead(&second)), (0, 1));
        assert_eq!(view.mismatch_ahead(&first, Mode::Shared), None);
        assert_eq!(view.mismatch_ahead(&second, semaphore), Some(Mode::Shared));
    }
}
