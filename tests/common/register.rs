//! What a lock protects: it takes a write only with a token that is not below the highest it has seen.

use std::sync::{Mutex, PoisonError};

/// A fenced register.
#[derive(Debug, Default)]
pub struct Register {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    highest: u64,
    writes: u64,
}

impl Register {
    /// Whether a write with this token is taken.
    pub fn write(&self, token: u64) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = token >= state.highest;
        if taken {
            state.highest = token;
            state.writes += 1;
        }
        taken
    }

    /// How many were.
    pub fn writes(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).writes
    }
}
