//! Finds the claims of one queue by the ids of their holds, for calls, and by their tokens, for leases.
//!
//! Claim ids do not suffice: re-entry can keep a claim after its first hold has ended, and a retry of that hold's request
//! creates another claim of the same id. Most queues are short and are searched one claim after another; only long ones
//! have maps.

use std::collections::HashMap;

use super::claims::Claims;
use crate::name::{ClaimId, FencingToken};
use crate::queue::claim::Claim;

/// A queue with more places than this has maps.
const MAPPED_ABOVE: usize = 16;
/// A queue with fewer places than this has none: between the two, they are not built again and again.
const SEARCHED_BELOW: usize = 8;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Index {
    /// The places of all claims.
    places: usize,
    maps: Option<Box<Maps>>,
}

#[derive(Debug, Clone, Default)]
struct Maps {
    by_hold: HashMap<ClaimId, u64>,
    by_token: HashMap<FencingToken, u64>,
}

impl Maps {
    fn add(&mut self, position: u64, claim: &Claim) {
        self.by_hold.extend(claim.hold_ids().map(|id| (id, position)));
        self.by_token.extend(claim.holding().map(|it| (it.token, position)));
    }
}

impl Index {
    /// The places of all claims.
    pub fn places(&self) -> usize {
        self.places
    }

    pub fn find(&self, claims: &Claims, id: &ClaimId) -> Option<u64> {
        match &self.maps {
            Some(maps) => maps.by_hold.get(id).copied(),
            None => search(claims, |claim| claim.hold_ids().any(|hold| hold == *id)),
        }
    }

    pub fn find_token(&self, claims: &Claims, token: FencingToken) -> Option<u64> {
        match &self.maps {
            Some(maps) => maps.by_token.get(&token).copied(),
            None => search(claims, |claim| claim.holding().is_some_and(|it| it.token == token)),
        }
    }

    /// The claim at this position was inserted.
    pub fn added(&mut self, claims: &Claims, position: u64) {
        let Some(claim) = claims.get(position) else { return };
        self.places += claim.places();
        if let Some(maps) = &mut self.maps {
            maps.add(position, claim);
        }
        self.resize(claims);
    }

    /// The claim, which was at a position, was removed.
    pub fn removed(&mut self, claim: &Claim) {
        if let Some(maps) = &mut self.maps {
            for id in claim.hold_ids() {
                maps.by_hold.remove(&id);
            }
            if let Some(holding) = claim.holding() {
                maps.by_token.remove(&holding.token);
            }
        }
        self.leave(claim.places());
    }

    /// The claim at this position became a holder with this token.
    pub fn granted(&mut self, position: u64, token: FencingToken) {
        if let Some(maps) = &mut self.maps {
            maps.by_token.insert(token, position);
        }
    }

    /// The claim at this position has a further hold.
    pub fn hold_added(&mut self, claims: &Claims, position: u64, id: ClaimId) {
        self.places += 1;
        if let Some(maps) = &mut self.maps {
            maps.by_hold.insert(id, position);
        }
        self.resize(claims);
    }

    /// A hold of this id was removed from a claim, which takes so many places less.
    pub fn hold_removed(&mut self, id: ClaimId, places: usize) {
        if let Some(maps) = &mut self.maps {
            maps.by_hold.remove(&id);
        }
        self.leave(places);
    }

    fn leave(&mut self, places: usize) {
        self.places -= places;
        if self.places < SEARCHED_BELOW {
            self.maps = None;
        }
    }

    /// The holder at this position has a token in place of this placeholder.
    pub fn replace_token(&mut self, position: u64, placeholder: FencingToken, token: FencingToken) {
        if let Some(maps) = &mut self.maps {
            maps.by_token.remove(&placeholder);
        }
        self.granted(position, token);
    }

    fn resize(&mut self, claims: &Claims) {
        if self.places > MAPPED_ABOVE && self.maps.is_none() {
            let mut maps = Box::<Maps>::default();
            claims.iter().for_each(|(position, claim)| maps.add(position, claim));
            self.maps = Some(maps);
        }
    }
}

fn search(claims: &Claims, is_sought: impl Fn(&Claim) -> bool) -> Option<u64> {
    claims
        .iter()
        .find(|(_, claim)| is_sought(claim))
        .map(|(position, _)| position)
}
