//! `fencepost health`: whether a server serves, for containers without a shell.

use super::Failure;
use super::direct::Purpose;
use super::output::print;
use super::server::Server;

/// Check a server.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exits with 0 only if the server answers and serves and, with --namespace, if the store of that \
                        namespace serves.\n\nExamples:\n  fencepost health\n  fencepost health --namespace jobs"
)]
pub struct Health {
    /// Also check the store of this namespace
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    server: Server,
}

/// Asks for the health.
pub fn run(args: Health) -> Result<(), Failure> {
    let Health { namespace, server } = args;
    server.call(Purpose::within(namespace.as_deref()), async |client| {
        client.health(namespace.as_deref()).await
    })?;
    print("serving\n").map(drop).map_err(Failure::runtime)
}
