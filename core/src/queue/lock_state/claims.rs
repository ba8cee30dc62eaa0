//! The claims of one queue by their positions. A lock that nobody waits for has one, which takes no tree.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::queue::claim::Claim;

/// Claims in the order of their positions. A copy shares them until one of the two changes one.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    /// The claim with the lowest position.
    first: Option<(u64, Arc<Claim>)>,
    /// The others; empty if there is no first.
    rest: BTreeMap<u64, Arc<Claim>>,
}

impl Claims {
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    pub fn get(&self, position: u64) -> Option<&Claim> {
        match &self.first {
            Some((first, claim)) if *first == position => Some(claim),
            _ => self.rest.get(&position).map(AsRef::as_ref),
        }
    }

    pub fn get_mut(&mut self, position: u64) -> Option<&mut Claim> {
        match &mut self.first {
            Some((first, claim)) if *first == position => Some(Arc::make_mut(claim)),
            _ => self.rest.get_mut(&position).map(Arc::make_mut),
        }
    }

    /// Inserts a claim. A claim that was at this position is replaced.
    pub fn insert(&mut self, position: u64, claim: Claim) {
        let (mut position, mut claim) = (position, Arc::new(claim));
        match &mut self.first {
            None => return self.first = Some((position, claim)),
            Some((first, there)) if position <= *first => {
                std::mem::swap(there, &mut claim);
                std::mem::swap(first, &mut position);
                if position == *first {
                    return;
                }
            }
            Some(_) => {}
        }
        self.rest.insert(position, claim);
    }

    pub fn remove(&mut self, position: u64) -> Option<Claim> {
        if self.first.as_ref().is_none_or(|(first, _)| *first != position) {
            return self.rest.remove(&position).map(Arc::unwrap_or_clone);
        }
        let removed = std::mem::replace(&mut self.first, self.rest.pop_first());
        removed.map(|(_, claim)| Arc::unwrap_or_clone(claim))
    }

    /// All claims with their positions.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Claim)> {
        self.range(0..u64::MAX)
    }

    /// The claims at these positions.
    pub fn range(&self, positions: Range<u64>) -> impl Iterator<Item = (u64, &Claim)> {
        let first = self.first.iter().filter({
            let positions = positions.clone();
            move |(position, _)| positions.contains(position)
        });
        let first = first.map(|(position, claim)| (*position, claim.as_ref()));
        let rest = self.rest.range(positions);
        first.chain(rest.map(|(position, claim)| (*position, claim.as_ref())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{NewClaim, ReplicaId};
    use std::time::SystemTime;

    fn claim(number: u8) -> Claim {
        Claim::waiting(
            &NewClaim::numbered(number),
            ReplicaId::default(),
            SystemTime::UNIX_EPOCH,
        )
    }

    /// The same by a tree alone.
    type Model = BTreeMap<u64, u8>;

    fn seen<'a>(claims: impl Iterator<Item = (u64, &'a Claim)>) -> Vec<(u64, [u8; 16])> {
        claims
            .map(|(position, claim)| (position, *claim.id.as_bytes()))
            .collect()
    }

    fn expected<'a>(model: impl Iterator<Item = (&'a u64, &'a u8)>) -> Vec<(u64, [u8; 16])> {
        model
            .map(|(position, number)| (*position, *claim(*number).id.as_bytes()))
            .collect()
    }

    proptest::proptest! {
        #[test]
        fn claims_are_kept_as_a_tree_keeps_them(steps in proptest::collection::vec((0_u64..6, 0_u8..2, 1_u8..100), 0..40)) {
            let (mut claims, mut model) = (Claims::default(), Model::new());
            for (position, step, number) in steps {
                if step == 0 {
                    let removed = claims.remove(position).map(|claim| *claim.id.as_bytes());
                    let expected = model.remove(&position).map(|number| *claim(number).id.as_bytes());
                    proptest::prop_assert_eq!(removed, expected);
                } else {
                    claims.insert(position, claim(number));
                    model.insert(position, number);
                }
                proptest::prop_assert_eq!(claims.len(), model.len());
                proptest::prop_assert_eq!(claims.is_empty(), model.is_empty());
                proptest::prop_assert_eq!(seen(claims.iter()), expected(model.iter()));
                for at in 0..7 {
                    proptest::prop_assert_eq!(seen(claims.range(at..at.max(5))), expected(model.range(at..at.max(5))));
                    let found = claims.get(at).map(|claim| claim.id);
                    proptest::prop_assert_eq!(found, claims.get_mut(at).map(|claim| claim.id));
                    proptest::prop_assert_eq!(found.is_some(), model.contains_key(&at));
                }
            }
        }
    }
}
