//! The arguments with which another command reaches the store that this one uses without a server.

use std::sync::OnceLock;

static ARGUMENTS: OnceLock<String> = OnceLock::new();

/// Sets them.
pub fn set(arguments: String) {
    // A command uses one store.
    let _ = ARGUMENTS.set(arguments);
}

/// A command as it is typed to reach the same store.
pub fn as_typed(command: &str) -> String {
    match ARGUMENTS.get() {
        Some(arguments) => format!("{command} {arguments}"),
        None => command.to_owned(),
    }
}
