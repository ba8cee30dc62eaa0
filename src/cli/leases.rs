//! `fencepost acquire`, `renew` and `release`: explicit lease operations.

use std::time::Duration;

use fencepost::api::proto;
use fencepost::clock;
use fencepost_client::time;

use super::direct::Purpose;
use super::lease_id::{LeaseId, namespace};
use super::lock_request::{LockRequest, entry};
use super::output::{Reader, print, seconds};
use super::server::Call;
use super::table::pairs;
use super::unprintable::plain;
use super::{Failure, progress_line};

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
    #[arg(long, value_name = "ID", requires = "owner", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    request_id: Option<String>,
    /// Add a hold to a reentrant lease of the same owner
    #[arg(long, requires = "owner")]
    reentrant: bool,
    /// Print only the lease id, which `renew` and `release` need
    #[arg(long, short, conflicts_with = "output")]
    quiet: bool,
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
}

/// Release a lease.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  fencepost release --lease-id-file lease --keep-for 1m\n  printf %s \"$lease\" | fencepost release --lease-id-file -"
)]
pub struct Release {
    #[command(flatten)]
    lease: LeaseId,
    /// Keep the lock taken for this time from now on; only force-release ends it sooner
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    keep_for: Option<Duration>,
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
}

/// Acquires a lock and prints its lease.
pub fn acquire(Call { args, server, output }: Call<Acquire>) -> Result<(), Failure> {
    let (begin, in_namespace) = (clock::since_boot(), args.request.lock.namespace.as_str());
    let purpose = Purpose::acquiring(in_namespace, args.request.wait);
    let granted = server.call(purpose, async |client| {
        let request = args.request.after(server.direct_time(begin));
        let mut call = request.acquire(client);
        if let Some(id) = &args.request_id {
            call = call.request_id(id);
        }
        if args.reentrant {
            call = call.reentrant();
        }
        progress_line::with_progress(client, &request, 0, call.lease()).await
    });
    let lease = granted.map_err(|failure| failure.about(&args.request.lock))?;
    let shown = match args.quiet {
        true => print(&format!("{}\n", plain(&lease.lease_id))).map_err(Failure::runtime),
        false => output.show(&lease, text),
    };
    if !matches!(shown, Ok(Reader::Open)) {
        // Nobody knows the lease, so nobody could release it.
        let purpose = Purpose::within([in_namespace]);
        server.call(purpose, async |client| client.release(&lease.lease_id).await)?;
    }
    shown.map(drop)
}

/// Renews a lease and prints it.
pub fn renew(Call { args, server, output }: Call<Renew>) -> Result<(), Failure> {
    let lease_id = args.lease.read()?;
    let lease = server.call(Purpose::within(namespace(&lease_id)), async |client| {
        client.renew(&lease_id, args.ttl).await
    })?;
    output.show(&lease, text).map(drop)
}

/// Releases a lease.
pub fn release(Call { args, server, output }: Call<Release>) -> Result<(), Failure> {
    let lease_id = args.lease.read()?;
    let keep_for = args.keep_for.unwrap_or_default();
    let kept = server.call(Purpose::within(namespace(&lease_id)), async |client| {
        client.release_keeping(&lease_id, keep_for).await
    })?;
    let released = proto::ReleaseResponse {
        kept_for: kept.and_then(|kept| kept.try_into().ok()),
    };
    let text = |_: &_| match kept {
        Some(kept) => format!("released; the lock stays taken for {}\n", seconds(kept)),
        None => "released\n".to_owned(),
    };
    output.show(&released, text).map(drop)
}

/// Replaces the metadata of a lease.
pub fn update_metadata(Call { args, server, output }: Call<UpdateMetadata>) -> Result<(), Failure> {
    let lease_id = args.lease.read()?;
    let metadata = args.metadata.into_iter().collect();
    server.call(Purpose::within(namespace(&lease_id)), async |client| {
        client.update_metadata(&lease_id, metadata).await
    })?;
    let text = |_: &_| "updated\n".to_owned();
    output.show(&proto::UpdateMetadataResponse {}, text).map(drop)
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

/// The guarantee of a store, in two letters.
pub fn guarantee(guarantee: proto::Guarantee) -> &'static str {
    match guarantee {
        proto::Guarantee::Ap => "AP",
        proto::Guarantee::Cp => "CP",
        proto::Guarantee::Unspecified => "?",
    }
}
