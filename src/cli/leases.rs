//! `fencepost acquire`, `renew` and `release`: a lease by hand.

use std::time::Duration;

use fencepost::api::proto;
use fencepost::client::time;

use super::lock_request::LockRequest;
use super::lease_id::LeaseId;
use super::output::{Output, print};
use super::server::{Server, block_on};
use super::table::pairs;
use super::unprintable::plain;
use super::{Failure, failure, waiting};

const ACQUIRE_HELP: &str = "\
Examples:
  fencepost acquire default/reports --wait 30s --ttl 5m
  lease=$(fencepost acquire default/reports --quiet)
  (umask 077; fencepost acquire default/reports --quiet >lease)
  fencepost acquire default/licences --permits 2 --limit 5 --output json";

/// Take a lock.
#[derive(Debug, clap::Args)]
#[command(after_help = ACQUIRE_HELP)]
pub struct Acquire {
    #[command(flatten)]
    asking: LockRequest,
    /// Find the claim of an earlier call with the same id, lock and owner
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// Add a hold to a lease of the same owner that was taken so too
    #[arg(long, requires = "owner")]
    reentrant: bool,
    /// Print the lease id alone, which `renew` and `release` need
    #[arg(long, short, conflicts_with = "output")]
    quiet: bool,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    output: Output,
}

/// Give a lease more time.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  fencepost renew --lease-id-file lease --ttl 10m\n  fencepost renew \"$lease\" --ttl 10m"
)]
pub struct Renew {
    #[command(flatten)]
    lease: LeaseId,
    /// How much, from now on; it never becomes shorter [default: what it was last given]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    ttl: Option<Duration>,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    output: Output,
}

/// Give a lease back.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  fencepost release --lease-id-file lease\n  printf %s \"$lease\" | fencepost release --lease-id-file -"
)]
pub struct Release {
    #[command(flatten)]
    lease: LeaseId,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    output: Output,
}

/// Takes a lock and prints its lease.
pub fn acquire(args: Acquire) -> Result<(), Failure> {
    let lease = block_on(async {
        let client = args.server.connect().await?;
        let mut ask = args.asking.acquire(&client);
        if let Some(id) = &args.request_id {
            ask = ask.request_id(id);
        }
        if args.reentrant {
            ask = ask.reentrant();
        }
        let granted = waiting::shown(&client, &args.asking, ask.lease()).await;
        granted.map_err(|error| args.asking.failure(error))
    })?;
    if args.quiet {
        return print(&format!("{}\n", plain(&lease.lease_id)))
            .map(drop)
            .map_err(Failure::runtime);
    }
    args.output.show(&lease, text).map(drop)
}

/// Renews a lease and prints it.
pub fn renew(args: Renew) -> Result<(), Failure> {
    let lease_id = args.lease.read()?;
    let lease = block_on(async {
        let client = args.server.connect().await?;
        client.renew(&lease_id, args.ttl).await.map_err(failure)
    })?;
    args.output.show(&lease, text).map(drop)
}

/// Gives a lease back.
pub fn release(args: Release) -> Result<(), Failure> {
    let lease_id = args.lease.read()?;
    block_on(async {
        let client = args.server.connect().await?;
        client.release(&lease_id).await.map_err(failure)
    })?;
    let text = |_: &_| "released\n".to_owned();
    args.output.show(&proto::ReleaseResponse {}, text).map(drop)
}

fn text(lease: &proto::Lease) -> String {
    pairs(&[
        ("lock", plain(&format!("{}/{}", lease.namespace, lease.name))),
        ("owner", plain(&lease.owner)),
        ("token", lease.fencing_token.to_string()),
        ("ttl", seconds(time(lease.ttl))),
        ("waited", seconds(time(lease.waited))),
        ("guarantee", guarantee(lease.guarantee()).to_owned()),
        ("holds", lease.holds.to_string()),
        ("lease id", plain(&lease.lease_id)),
    ])
}

/// A short time.
pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// What a store promises, in two letters.
pub fn guarantee(guarantee: proto::Guarantee) -> &'static str {
    match guarantee {
        proto::Guarantee::Ap => "AP",
        proto::Guarantee::Cp => "CP",
        proto::Guarantee::Unspecified => "?",
    }
}
