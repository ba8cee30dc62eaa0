//! Requests that make no call, and what a server of this release does not know.

use super::curl::{VERSIONS, call, json};
use super::start;

const ONE: &str = r#"{"namespace":"default","name":"app/one"}"#;

// G192
#[test]
fn a_call_that_is_refused_for_its_headers_has_a_reason_and_an_id_and_is_counted() {
    let (server, _home) = start("metrics_listen = \"127.0.0.1:0\"\n");
    for version in VERSIONS {
        for header in ["connect-timeout-ms: soon", "connect-protocol-version: 2"] {
            let answer = json(
                &server,
                "LockService/GetLock",
                &[version, &["-H", header]].concat(),
                ONE,
            );
            let status = (answer.status, answer.header("fencepost-reason"));
            assert_eq!(status, (400, "INVALID_FIELD"), "{header}");
            assert_eq!(answer.error(), ("INVALID_FIELD".into(), "invalid_argument".into()));
            assert!(!answer.header("x-request-id").is_empty(), "{header}");
            let own = ["-H", header, "-H", "x-request-id: by-curl"];
            let answer = json(&server, "LockService/GetLock", &[version, &own].concat(), ONE);
            assert_eq!(answer.header("x-request-id"), "by-curl");
        }
        let stream = json(&server, "LockService/Session", version, "{}");
        assert_eq!((stream.status, stream.header("x-request-id").is_empty()), (501, false));
    }
    let address = server.metrics.clone().expect("a port");
    let metrics = std::process::Command::new("curl")
        .args(["-s", &format!("http://{address}/metrics")])
        .output();
    let metrics = String::from_utf8(metrics.expect("curl").stdout).expect("text");
    let counted = metrics.lines().any(|line| {
        line.starts_with("fencepost_requests_total")
            && line.contains("method=\"GetLock\"")
            && line.contains("reason=\"INVALID_FIELD\"")
            && line.ends_with(" 8")
    });
    assert!(counted, "{metrics}");
}

#[tokio::test]
async fn a_head_request_over_http_2_gets_no_body_and_no_method_but_post_makes_a_call() {
    let (server, _home) = start("");
    let socket = tokio::net::TcpStream::connect(&server.address).await.expect("the port");
    let (opener, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    tokio::spawn(connection);
    for content_type in [None, Some("application/json"), Some("application/grpc")] {
        for method in ["HEAD", "GET"] {
            let mut request = http::Request::builder()
                .method(method)
                .uri("http://localhost/fencepost.v1.LockService/GetLock");
            if let Some(own) = content_type {
                request = request.header("content-type", own);
            }
            let mut opener = opener.clone().ready().await.expect("room for calls");
            let request = request.body(()).expect("a request");
            let (answer, _) = opener.send_request(request, true).expect("sent");
            let answer = answer.await.expect("an answer");
            let allowed = answer.headers().get("allow").map(http::HeaderValue::as_bytes);
            assert_eq!(
                (answer.status().as_u16(), allowed),
                (405, Some(&b"POST"[..])),
                "{method}"
            );
            let mut body = answer.into_body();
            let mut bytes = 0;
            while let Some(part) = body.data().await {
                bytes += part.expect("no reset").len();
            }
            assert_eq!(bytes == 0, method == "HEAD", "{method}: {bytes} bytes");
        }
    }
}

// G195
#[test]
fn a_field_that_the_server_does_not_know_is_ignored() {
    let (server, _home) = start("");
    let later = r#"{"namespace":"default","ofALaterRelease":{"a":[1,{}]},"name":"app/one"}"#;
    let answer = json(&server, "LockService/GetLock", &[], later);
    assert_eq!(
        (answer.status, &answer.json()["lock"]["name"]),
        (200, &"app/one".into())
    );
    let nested = r#"{"namespace":"default","name":"app/one","owner":"me","mode":{"exclusive":{"ofALaterRelease":1}}}"#;
    assert_eq!(json(&server, "LockService/Acquire", &[], nested).status, 200);
    let wrong = call(
        &server,
        "LockService/GetLock",
        &["-H", "content-type: application/json"],
        br#"{"namespace":7,"name":"app/one"}"#,
    );
    assert_eq!(wrong.status, 400, "a known field has its type");
}
