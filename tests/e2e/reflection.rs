//! What a server says of itself to a client without files.

use fencepost::rpc::METHODS;

use super::grpcurl::Caller;
use super::server::Server;

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
        let path = method.path.trim_start_matches('/').replace('/', ".");
        let described = caller.ask(&["describe", &path]);
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
