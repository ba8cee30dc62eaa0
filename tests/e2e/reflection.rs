//! What a server says of itself to a client without files.

use super::grpcurl::Caller;
use super::server::Server;

const METHODS: [&str; 10] = [
    "LockService.Acquire",
    "LockService.Renew",
    "LockService.Release",
    "LockService.GetLock",
    "LockService.ListLocks",
    "LockService.WatchLock",
    "LockService.CheckToken",
    "AdminService.ForceRelease",
    "AdminService.ListNamespaces",
    "AdminService.Admit",
];

#[test]
fn every_service_and_method_is_described() {
    let home = tempfile::tempdir().expect("a directory");
    let server = Server::start(&home);
    let Some(caller) = Caller::of(&server) else { return };
    let services = caller.ask(&["list"]);
    for service in [
        "fencepost.v1.LockService",
        "fencepost.v1.AdminService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
    ] {
        assert!(services.lines().any(|line| line == service), "{service}: {services}");
    }
    for method in METHODS {
        let described = caller.ask(&["describe", &format!("fencepost.v1.{method}")]);
        assert!(described.contains(" is a method:"), "{described}");
    }
    let message = caller.ask(&["describe", "fencepost.v1.AcquireRequest"]);
    assert!(message.contains(".google.protobuf.Duration wait"), "{message}");
}

#[test]
fn health_is_told_for_the_server_and_each_namespace() {
    let home = tempfile::tempdir().expect("a directory");
    let server = Server::start(&home);
    let Some(caller) = Caller::of(&server) else { return };
    for service in ["", "fencepost.v1.LockService", "namespace/default"] {
        assert_eq!(caller.health(service).as_deref(), Some("SERVING"), "{service}");
    }
    assert_eq!(caller.health("namespace/nowhere"), None);
}
