//! What a claim shows of itself, as it is stored.

use serde::{Deserialize, Serialize};

use crate::backend::NewClaim;

/// The version of [`ClaimDescription`] as it is stored.
const SHOWN_VERSION: u8 = 1;

/// What a claim shows of itself: stored beside it, and opaque to the scripts.
#[derive(Debug, Serialize, Deserialize)]
pub struct ClaimDescription {
    /// The form that this is.
    pub version: u8,
    /// The owner's label.
    pub owner: String,
    /// Who the owner was proven to be.
    pub identity: String,
    /// The metadata, by key.
    pub metadata: Vec<(String, String)>,
}

impl ClaimDescription {
    /// What a new claim shows.
    pub fn of(claim: &NewClaim) -> Vec<u8> {
        let shown = Self {
            version: SHOWN_VERSION,
            owner: claim.owner.as_str().to_owned(),
            identity: claim.identity.as_str().to_owned(),
            metadata: claim.metadata.entries().to_vec(),
        };
        // Strings in memory always serialize.
        postcard::to_allocvec(&shown).unwrap_or_default()
    }

    /// Reads what [`Self::of`] wrote; nothing for a form of another release.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes)
            .ok()
            .filter(|shown: &Self| shown.version == SHOWN_VERSION)
    }
}
