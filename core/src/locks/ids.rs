//! Ids for new calls: random ids, and the claim id that a request id determines.

use std::cell::RefCell;

use sha2::{Digest, Sha256};

use crate::backend::BackendError;
use crate::name::{ClaimId, Identity, LockName, Owner, RequestId};

/// How many ids are drawn at once, because a random number costs a system call however many bytes
/// it returns.
const DRAWN_AT_ONCE: usize = 256;

thread_local! {
    /// Ids that were drawn and not used yet.
    static DRAWN: RefCell<Vec<[u8; 16]>> = const { RefCell::new(Vec::new()) };
}

/// Draws ids from the system's random number generator.
///
/// # Errors
/// When the generator fails.
pub fn random<const N: usize>() -> Result<[[u8; 16]; N], BackendError> {
    let mut ids = [[0; 16]; N];
    for id in &mut ids {
        *id = DRAWN.with_borrow_mut(draw)?;
    }
    Ok(ids)
}

fn draw(drawn: &mut Vec<[u8; 16]>) -> Result<[u8; 16], BackendError> {
    if let Some(id) = drawn.pop() {
        return Ok(id);
    }
    let mut fresh = [[0; 16]; DRAWN_AT_ONCE];
    getrandom::fill(fresh.as_flattened_mut()).map_err(|error| BackendError::Broken {
        reason: format!("no random numbers: {error}"),
    })?;
    let [id, rest @ ..] = fresh;
    drawn.extend(rest);
    Ok(id)
}

/// A digest of a session's id.
pub fn of_session(id: &str) -> u64 {
    let mut digest = [0; 8];
    digest.copy_from_slice(&Sha256::digest(id)[..8]);
    u64::from_be_bytes(digest)
}

/// The claim id that a request id determines. Every replica computes the same one.
pub fn of_request((lock, owner): (&LockName, &Owner), identity: &Identity, request_id: &RequestId) -> ClaimId {
    let mut hash = Sha256::new();
    for part in [lock.as_str(), owner.as_str(), identity.as_str(), request_id.as_str()] {
        // Prefixed with its length, so that different lists of parts never hash the same bytes.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut id = [0; 16];
    id.copy_from_slice(&hash.finalize()[..16]);
    ClaimId::from_bytes(id)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_id_is_drawn_twice_on_any_thread() {
        let draw = || random::<{ 2 * DRAWN_AT_ONCE }>().unwrap();
        let other = std::thread::spawn(draw).join().unwrap();
        let ids: HashSet<_> = [draw(), draw(), other].into_iter().flatten().collect();
        assert_eq!(ids.len(), 6 * DRAWN_AT_ONCE);
    }
}
