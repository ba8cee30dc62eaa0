//! `fencepost acquire`, `renew` and `release`: explicit lease operations.

use std::time::Duration;

use fencepost::api::proto;
use fencepost::client::time;

use super::lease_id::LeaseId;
use super::lock_request::{LockRequest, entry};
use super::output::{Output, print};
use super::server::{Server, block_on};
use super::table::pairs;
use super::unprintable::plain;
use super::{Failure, failure, progress_line};

const ACQUIRE_HELP: &str = "\
Examples:
  fencepost acquire default/reports --wait 30s --ttl 5m
  lease=$(fencepost acquire default/reports --quiet)
  (umask 077; fencepost acquire default/reports --quiet >lease)
  fencepost acquire default/licences --permits 2 --limit 5 --output json";

/// Acquire a lock.
#[derive(Debug, clap::Args)]
#[command(after_help = ACQUIRE_HELP)]
pub struct Acquire {
    #[command(flatten)]
    request: LockRequest,
    /// Find the claim of an earlier call with the same id, lock and owner
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// Add a hold to a reentrant lease of the same owner
    #[arg(long, requires = "owner")]
    reentrant: bool,
    /// Print only the lease id, which `renew` and `release` need
    #[arg(long, short, conflicts_with = "output")]
    quiet: bool,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    pub output: Output,
}

/// Renew a lease.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  fencepost renew --lease-id-file lease --ttl 10m\n  fencepost renew \"$lease\" --ttl 10m"
)]
pub struct Renew {
    #[command(flatten)]
    lease: LeaseId,
    /// The new TTL, from now on; a renewal never shortens the lease [default: the TTL last requested]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    ttl: Option<Duration>,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    pub output: Output,
}

/// Release a lease.
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
    pub output: Output,
}

/// Replace the metadata of a lease.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  fencepost update-metadata --lease-id-file lease --metadata host=a --metadata phase=2"
)]
pub struct UpdateMetadata {
    #[command(flatten)]
    lease: LeaseId,
    /// A metadata entry that operators see; may be given several times, and without it all entries are removed
    #[arg(long, value_name = "KEY=VALUE", value_parser = entry)]
    metadata: Vec<(String, String)>,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    pub output: Output,
}

/// Acquires a lock and prints its lease.
pub fn acquire(args: Acquire) -> Result<(), Failure> {
    let lease = block_on(async {
        let client = args.server.connect().await?;
        let mut call = args.request.acquire(&client);
        if let Some(id) = &args.request_id {
            call = call.request_id(id);
        }
        if args.reentrant {
            call = call.reentrant();
        }
        let granted = progress_line::with_progress(&client, &args.request, 0, call.lease()).await;
        granted.map_err(|error| args.request.failure(error))
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

/// Releases a lease.
pub fn release(args: Release) -> Result<(), Failure> {
    let lease_id = args.lease.read()?;
    block_on(async {
        let client = args.server.connect().await?;
        client.release(&lease_id).await.map_err(failure)
    })?;
    let text = |_: &_| "released\n".to_owned();
    args.output.show(&proto::ReleaseResponse {}, text).map(drop)
}

/// Replaces the metadata of a lease.
pub fn update_metadata(args: UpdateMetadata) -> Result<(), Failure> {
    let lease_id = args.lease.read()?;
    let metadata = args.metadata.into_iter().collect();
    block_on(async {
        let client = args.server.connect().await?;
        client.update_metadata(&lease_id, metadata).await.map_err(failure)
    })?;
    let text = |_: &_| "updated\n".to_owned();
    args.output.show(&proto::UpdateMetadataResponse {}, text).map(drop)
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

/// A duration in seconds, with one decimal.
pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// The guarantee of a store, in two letters.
pub fn guarantee(guarantee: proto::Guarantee) -> &'static str {
    match guarantee {
        proto::Guarantee::Ap => "AP",
        proto::Guarantee::Cp => "CP",
        proto::Guarantee::Unspecified => "?",
    }
}
