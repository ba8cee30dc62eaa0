//! The stored description of a claim.

use serde::{Deserialize, Serialize};

use crate::backend::NewClaim;

/// The stored version of [`ClaimDescription`].
const DESCRIPTION_VERSION: u8 = 1;

/// The description of a claim: stored with it, and opaque to the scripts.
#[derive(Debug, Serialize, Deserialize)]
pub struct ClaimDescription {
    /// The version of this format.
    pub version: u8,
    /// The owner's label.
    pub owner: String,
    /// The owner's authenticated identity.
    pub identity: String,
    /// The metadata, by key.
    pub metadata: Vec<(String, String)>,
}

impl ClaimDescription {
    /// Encodes the description of a new claim.
    pub fn of(claim: &NewClaim) -> Vec<u8> {
        let description = Self {
            version: DESCRIPTION_VERSION,
            owner: claim.owner.as_str().to_owned(),
            identity: claim.identity.as_str().to_owned(),
            metadata: claim.metadata.entries().to_vec(),
        };
        // Encoding strings into memory cannot fail.
        postcard::to_allocvec(&description).unwrap_or_default()
    }

    /// Decodes the output of [`Self::of`]; absent for the format of another release.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes)
            .ok()
            .filter(|description: &Self| description.version == DESCRIPTION_VERSION)
    }
}
