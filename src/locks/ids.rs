//! The ids of a new call: random ones, and the one that a request id stands for.

use std::cell::RefCell;

use sha2::{Digest, Sha256};

use super::Acquire;
use crate::backend::BackendError;
use crate::name::{ClaimId, RequestId};

/// How many ids are drawn at once: the system's random numbers cost a system call, whether for one
/// id or for many.
const DRAWN_AT_ONCE: usize = 256;

thread_local! {
    /// Ids that were drawn and not yet given out.
    static DRAWN: RefCell<Vec<[u8; 16]>> = const { RefCell::new(Vec::new()) };
}

/// Fresh ids from the system's random numbers.
///
/// # Errors
/// When the system has none.
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

/// The id of the claim that a request id names: every replica finds the same.
pub fn of_request(ask: &Acquire, request: &RequestId) -> ClaimId {
    let mut hash = Sha256::new();
    for part in [
        ask.lock.as_str(),
        ask.owner.as_str(),
        ask.identity.as_str(),
        request.as_str(),
    ] {
        // With its length, so that no two lists of parts read the same.
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
    fn no_id_is_given_out_twice_on_any_thread() {
        let draw = || random::<{ 2 * DRAWN_AT_ONCE }>().unwrap();
        let other = std::thread::spawn(draw).join().unwrap();
        let ids: HashSet<_> = [draw(), draw(), other].into_iter().flatten().collect();
        assert_eq!(ids.len(), 6 * DRAWN_AT_ONCE);
    }
}
