//! UpdateMetadata over the API.

use fencepost::api::proto::{AcquireRequest, Lease, UpdateMetadataRequest};
use tonic::{Code, Status};

use super::refused::{invalid, lost, refused};
use super::service::{Service, acquire};
use crate::fixture::Fixture;

async fn update(service: &Service, lease: &Lease, entries: &[(&str, &str)]) -> Result<(), Status> {
    let entries = entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let ask = UpdateMetadataRequest {
        lease_id: lease.lease_id.clone(),
        metadata: entries.collect(),
    };
    service.locks().update_metadata(ask).await.map(drop)
}

// G35
pub async fn an_update_is_shown_or_unsupported(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let noting = AcquireRequest {
        metadata: [("host".to_owned(), "h1".to_owned())].into(),
        ..acquire("a")
    };
    let a = service.acquire(noting).await;
    let answer = update(&service, &a, &[("host", "h2"), ("phase", "2")]).await;
    let shown = service.inspect().await.holders[0].metadata.clone();
    if fixture.capabilities().updates_metadata {
        answer.expect("updated");
        assert_eq!(
            (shown["host"].as_str(), shown["phase"].as_str(), shown.len()),
            ("h2", "2", 2)
        );
        update(&service, &a, &[]).await.expect("updated");
        assert!(service.inspect().await.holders[0].metadata.is_empty());
    } else {
        refused(answer, Code::FailedPrecondition, "UNSUPPORTED");
        assert_eq!(shown["host"], "h1");
    }
}

pub async fn an_update_of_a_lost_lease_says_so(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    service.release(&a).await;
    lost(update(&service, &a, &[("a", "b")]).await, "released");
    let b = service.acquire(acquire("b")).await;
    service.try_force(b.fencing_token).await.expect("forced");
    lost(update(&service, &b, &[("a", "b")]).await, "forced");
}

pub async fn an_update_beyond_its_bounds_is_refused(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    let long = "x".repeat(4097);
    invalid(update(&service, &a, &[("", long.as_str())]).await, "metadata");
    let false_id = Lease {
        lease_id: "1:jobs".into(),
        ..Lease::default()
    };
    invalid(update(&service, &false_id, &[]).await, "lease_id");
    assert!(service.inspect().await.holders[0].metadata.is_empty());
}
