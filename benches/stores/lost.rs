//! How soon a client that keeps a lease is told that it was released by force, from the call of ForceRelease on.

use std::path::Path;
use std::time::{Duration, Instant};

use fencepost::api::proto::admin_service_client::AdminServiceClient;
use fencepost::api::proto::keep_alive_response::{Event, Kept, Lost};
use fencepost::api::proto::{ForceReleaseRequest, KeepAliveRequest, KeepAliveResponse};
use futures::channel::mpsc::{UnboundedSender, unbounded};
use tonic::Streaming;
use tonic::transport::Channel;

use crate::process::{NAMESPACE, Server};
use crate::report::Report;
use crate::side::Bench;
use crate::stats::millis;
use crate::{Failure, client, own};

/// What the 99th percentile may be, in milliseconds, if the server that is called is the one that keeps the lease.
const SAME: f64 = 20.0;
/// The same if it is another one. The servers of ZooKeeper, MySQL and RedLock tell each other nothing: there the client is
/// told with its next beat.
const OTHER: f64 = 250.0;

/// Releases leases by force at the server that keeps them, and, where servers tell each other, at another one.
pub async fn measure(
    program: &Path,
    bench: &Bench,
    (times, tells): (usize, bool),
    report: &mut Report,
) -> Result<(), Failure> {
    let other = bench.server.beside(program)?;
    own::serves(&other).await?;
    for (what, server, most) in [
        ("at the server that keeps it", &bench.server, SAME),
        ("at another server", &other, OTHER),
    ]
    .into_iter()
    .take(1 + usize::from(tells))
    {
        let (mut keeper, mut admin) = (Keeper::open(&bench.server).await?, admin(server).await?);
        let mut told = Vec::with_capacity(times);
        for beat in 1..=times {
            told.push(millis(keeper.lose_one(&mut admin, beat as u64).await?));
        }
        report.add_lost(what, told, most);
    }
    Ok(())
}

async fn admin(server: &Server) -> Result<AdminServiceClient<Channel>, Failure> {
    let endpoint = client::endpoint("http", &server.address)?;
    Ok(AdminServiceClient::new(endpoint.connect().await?))
}

/// A client with a stream that keeps its leases.
struct Keeper {
    locks: client::Locks,
    beats: UnboundedSender<KeepAliveRequest>,
    events: Streaming<KeepAliveResponse>,
}

impl Keeper {
    async fn open(server: &Server) -> Result<Self, Failure> {
        let mut locks = client::connect(&server.address).await?;
        let (beats, sent) = unbounded();
        let events = locks.keep_alive(sent).await?.into_inner();
        Ok(Self { locks, beats, events })
    }

    /// Takes and keeps a lease, and returns how long after the call that ends it its loss is told.
    async fn lose_one(&mut self, admin: &mut AdminServiceClient<Channel>, beat: u64) -> Result<Duration, Failure> {
        let ask = client::ask(NAMESPACE, "forced", "bench", Duration::ZERO);
        let lease = client::acquire(&mut self.locks, ask).await?;
        let lease_ids = vec![lease.lease_id.clone()];
        self.beats.unbounded_send(KeepAliveRequest { beat, lease_ids })?;
        while !matches!(self.event().await?, Event::Kept(Kept { beat: kept, .. }) if kept == beat) {}
        let force = ForceReleaseRequest {
            namespace: NAMESPACE.into(),
            name: "forced".into(),
            fencing_token: lease.fencing_token,
            reason: String::new(),
        };
        let began = Instant::now();
        let told = async {
            while !matches!(self.event().await?, Event::Lost(Lost { lease_id, .. }) if lease_id == lease.lease_id) {}
            Ok::<_, Failure>(began.elapsed())
        };
        let (forced, told) = tokio::join!(admin.force_release(force), told);
        forced?;
        told
    }

    async fn event(&mut self) -> Result<Event, Failure> {
        let event = self.events.message().await?.and_then(|message| message.event);
        event.ok_or_else(|| "the stream ended".into())
    }
}
