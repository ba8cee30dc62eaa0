use super::*;
use tonic::Code;

fn request(service: &str) -> Request<HealthCheckRequest> {
    Request::new(HealthCheckRequest {
        service: service.into(),
    })
}

fn api() -> (HealthApi, CancellationToken) {
    let drain = CancellationToken::new();
    (HealthApi::new(Namespaces::default(), drain.clone()), drain)
}

async fn check(api: &HealthApi, service: &str) -> Result<ServingStatus, Code> {
    let answer = api.check(request(service)).await.map_err(|status| status.code())?;
    Ok(answer.into_inner().status())
}

#[tokio::test]
async fn the_server_serves_until_it_drains() {
    let (api, drain) = api();
    for service in SERVICES.iter().copied().chain([""]) {
        assert_eq!(check(&api, service).await, Ok(ServingStatus::Serving), "{service:?}");
    }
    drain.cancel();
    for service in SERVICES.iter().copied().chain([""]) {
        assert_eq!(check(&api, service).await, Ok(ServingStatus::NotServing), "{service:?}");
    }
}

#[tokio::test]
async fn an_unknown_service_is_not_found() {
    let (api, _drain) = api();
    for service in ["other", "namespace/none", "namespace/", "namespace/A b"] {
        assert_eq!(check(&api, service).await, Err(Code::NotFound), "{service:?}");
    }
}

#[tokio::test]
async fn a_watch_ends_with_not_serving_and_draining() {
    let (api, drain) = api();
    let mut statuses = api.watch(request("")).await.unwrap().into_inner();
    assert_eq!(statuses.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
    drain.cancel();
    assert_eq!(
        statuses.next().await.unwrap().unwrap().status(),
        ServingStatus::NotServing
    );
    let end = statuses.next().await.unwrap().unwrap_err();
    assert_eq!(super::super::status::reason(&end).as_deref(), Some("DRAINING"));
    assert!(statuses.next().await.is_none());
}

#[tokio::test]
async fn each_health_change_of_a_namespace_is_sent_once() {
    let (api, _drain) = api();
    let unavailable = || Health::Unavailable { reason: "gone".into() };
    let (store, health) = watch::channel(Health::Serving);
    let target = move || future::ready(HealthTarget::Namespace(health.clone())).boxed();
    let mut statuses = Box::pin(api.statuses(RECHECK_INTERVAL, target));
    assert_eq!(statuses.next().await, Some(ServingStatus::Serving));
    store.send(unavailable()).unwrap();
    assert_eq!(statuses.next().await, Some(ServingStatus::NotServing));
    store.send(unavailable()).unwrap();
    assert!(futures::poll!(statuses.next()).is_pending());
    store.send(Health::Serving).unwrap();
    assert_eq!(statuses.next().await, Some(ServingStatus::Serving));
}
