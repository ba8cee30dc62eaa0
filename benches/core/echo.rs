//! The bare echo as a process: this program in its other role.

use std::io::Write;

use crate::Failure;
use crate::echo_server::Echo;

/// The environment variable that makes this program an echo server; its value is the lease id that
/// every answer carries.
pub const ROLE: &str = "FENCEPOST_BENCH_ECHO";
/// What stands before the address in the line that says that it serves.
pub const READY: &str = "echoing on ";

/// The lease id to answer with, if this process is to be an echo server.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Serves until it is killed.
pub async fn serve(lease_id: String) -> Result<(), Failure> {
    let echo = Echo::bind(lease_id)?;
    println!("{READY}{}", echo.address());
    std::io::stdout().flush()?;
    Ok(echo.serve(std::future::pending()).await?)
}
