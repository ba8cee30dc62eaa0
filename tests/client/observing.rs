//! Observers whose servers restart, or know less than the one before.

use std::sync::atomic::{AtomicUsize, Ordering};

use fencepost::api::proto::election_service_server::{ElectionService, ElectionServiceServer};
use fencepost::api::proto::{
    CampaignRequest, CampaignResponse, GetLeaderRequest, GetLeaderResponse, Leader, ObserveRequest, ObserveResponse,
    ProclaimRequest, ProclaimResponse, ResignRequest, ResignResponse,
};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tonic::{Request, Response, Status};

use super::connect;

/// A server whose streams show these leaders, and end; the last one stays open.
struct Elections {
    streams: Vec<Vec<u64>>,
    opened: AtomicUsize,
}

fn leads(token: u64) -> ObserveResponse {
    let leader = Leader {
        fencing_token: token,
        ..Leader::default()
    };
    ObserveResponse {
        leader: (token > 0).then_some(leader),
    }
}

#[tonic::async_trait]
impl ElectionService for Elections {
    type ObserveStream = BoxStream<'static, Result<ObserveResponse, Status>>;

    async fn observe(&self, _: Request<ObserveRequest>) -> Result<Response<Self::ObserveStream>, Status> {
        let opened = self.opened.fetch_add(1, Ordering::Relaxed);
        let Some(tokens) = self.streams.get(opened) else {
            return Err(Status::permission_denied("no rule allows it any more"));
        };
        let shown: Vec<_> = tokens.iter().map(|token| Ok(leads(*token))).collect();
        let end = stream::iter([Err(Status::unavailable("the server restarts"))]);
        Ok(Response::new(stream::iter(shown).chain(end).boxed()))
    }

    async fn campaign(&self, _: Request<CampaignRequest>) -> Result<Response<CampaignResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn proclaim(&self, _: Request<ProclaimRequest>) -> Result<Response<ProclaimResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_leader(&self, _: Request<GetLeaderRequest>) -> Result<Response<GetLeaderResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn resign(&self, _: Request<ResignRequest>) -> Result<Response<ResignResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

// G48
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_never_goes_back_to_an_older_token() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let streams = vec![vec![0, 3, 5], vec![5], vec![3, 0, 4, 6], vec![0], vec![2, 7]];
    let elections = Elections {
        streams,
        opened: AtomicUsize::new(0),
    };
    let incoming = stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(socket, _)| socket);
        Some((accepted, listener))
    });
    let server = tonic::transport::Server::builder().add_service(ElectionServiceServer::new(elections));
    tokio::spawn(server.serve_with_incoming(incoming.boxed()));
    let client = connect(&[&address]).await.expect("a server");
    let seen = client.observe("default", "e").await.expect("a stream");
    let seen: Vec<_> = seen
        .map(|seen| seen.map(|seen| seen.leader.map_or(0, |leader| leader.fencing_token)))
        .collect()
        .await;
    let (last, seen) = seen.split_last().expect("an end");
    let seen: Vec<u64> = seen
        .iter()
        .map(|seen| *seen.as_ref().expect("no error before the end"))
        .collect();
    assert_eq!(seen, [0, 3, 5, 0, 6, 0, 7]);
    let error = last.as_ref().expect_err("what is not allowed ends it").to_string();
    assert!(error.contains("no rule allows"), "{error}");
}
