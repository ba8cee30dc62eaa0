//! `fencepost dev`: a server to write programs against, in memory, with the console and metrics.

use std::fmt::Write;
use std::io;

use fencepost::api::{HAS_CONSOLE, ListenAddress};
use fencepost::config::Overrides;

use super::{Announce, Reachable, serve_and};
use crate::cli::Failure;
use crate::cli::output::print;

/// The arguments of `fencepost dev`.
#[derive(Debug, clap::Args)]
pub struct Dev {
    /// Where to listen: IP:PORT; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50051")]
    listen: ListenAddress,
    /// Where to serve the console, if the program was built with it: IP:PORT
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:50052")]
    console_listen: ListenAddress,
    /// Where to answer /metrics: IP:PORT
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9464")]
    metrics_listen: ListenAddress,
}

/// Serves until a signal ends the server. All locks are lost then.
pub fn run(dev: Dev) -> Result<(), Failure> {
    let overrides = Overrides {
        memory: true,
        listen: Some(vec![dev.listen]),
        console_listen: HAS_CONSOLE.then_some(dev.console_listen),
        metrics_listen: Some(dev.metrics_listen),
        log_level: "warn".parse().ok(),
        ..Overrides::default()
    };
    serve_and(overrides, Announce::Dev)
}

/// Prints where the server can be reached, and how programs take a lock.
pub(super) fn print_reachable(reachable: &Reachable) -> io::Result<()> {
    print(&text(reachable)).map(drop)
}

fn text(reachable: &Reachable) -> String {
    let address = reachable.addresses.join(",");
    let mut text = format!("A server in memory listens on {address}. Ctrl-C ends it, and all locks are lost.\n");
    // Writing to a String does not fail.
    if let Some(url) = &reachable.console {
        let _ = writeln!(text, "The console is on {url}");
    }
    if let Some(url) = &reachable.metrics {
        let _ = writeln!(text, "The metrics are on {url}/metrics");
    }
    text + &SNIPPETS.replace("ADDRESS", &address)
}

const SNIPPETS: &str = r#"
Shell
    fencepost lock default/reports --addr ADDRESS --wait 30s -- make reports
Python
    with Client("ADDRESS").lock("reports", wait=30) as lock:
        save(report, token=lock.check())
Go
    client, err := fencepost.New(ctx, "ADDRESS")
    err = client.Do(ctx, "reports", func(ctx context.Context, lock *fencepost.Lock) error {
        return save(ctx, lock.Token())
    }, fencepost.Wait(30*time.Second))
Java
    var client = FencepostClient.builder().address("ADDRESS").build();
    try (HeldLock lock = client.lock("reports").waitFor(ofSeconds(30)).acquire()) { save(report, lock.check()); }
TypeScript
    await using client = new Client("ADDRESS");
    await client.using("reports", { waitMs: 30_000 }, async (lock) => save(report, lock.check()));
Rust
    let client = Client::connect(&["ADDRESS".parse()?]).await?;
    let guard = client.acquire("default", "reports", "me").wait(Duration::from_secs(30)).await?;
"#;
