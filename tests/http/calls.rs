//! What calls over HTTP answer, over both of its versions.

use std::process::Command;

use fencepost::api::proto::{AcquireRequest, AcquireResponse, GetLockRequest, WatchLockRequest, WatchLockResponse};
use prost::Message;
use serde_json::json;

use super::curl::{VERSIONS, call, json, prefixed};
use super::server::until;
use super::{guarded, start};

const ONE: &str = r#"{"namespace":"default","name":"app/one"}"#;
const ASK: &str = r#"{"namespace":"default","name":"app/one","owner":"me","ttl":"30s"}"#;

#[test]
fn a_lock_is_taken_seen_and_released_with_curl() {
    let (server, _home) = start("");
    for version in VERSIONS {
        let taken = json(&server, "LockService/Acquire", version, ASK);
        assert_eq!(
            (taken.status, taken.header("content-type")),
            (200, "application/json"),
            "{taken:?}"
        );
        let lease = &taken.json()["lease"];
        assert_eq!((&lease["owner"], &lease["ttl"]), (&json!("me"), &json!("30s")));
        let seen = json(&server, "LockService/GetLock", version, ONE).json();
        assert_eq!(seen["lock"]["holders"][0]["fencingToken"], lease["fencingToken"]);
        let release = json!({ "leaseId": lease["leaseId"] }).to_string();
        let released = json(&server, "LockService/Release", version, &release);
        assert_eq!((released.status, &released.body[..]), (200, &b"{}"[..]));
        let seen = json(&server, "LockService/GetLock", version, ONE).json();
        assert_eq!(seen["lock"]["holderCount"], 0);
    }
}

#[test]
fn protobuf_is_taken_and_answered_too() {
    let (server, _home) = start("");
    let ask = AcquireRequest {
        namespace: "default".into(),
        name: "app/one".into(),
        owner: "me".into(),
        ..AcquireRequest::default()
    };
    let typed = ["-H", "content-type: application/proto"];
    let answer = call(&server, "LockService/Acquire", &typed, &ask.encode_to_vec());
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, "application/proto")
    );
    let lease = AcquireResponse::decode(&answer.body[..]).expect("an answer").lease;
    assert_eq!(lease.expect("a lease").owner, "me");
    let broken = call(&server, "LockService/Acquire", &typed, b"\xff\xff");
    assert_eq!(
        (broken.status, broken.header("fencepost-reason")),
        (400, "INVALID_FIELD")
    );
    assert_eq!(broken.error().1, "invalid_argument");
}

// G167
#[test]
fn errors_have_the_code_the_reason_and_the_details_that_grpc_has() {
    let (server, _home) = start("");
    let renew = r#"{"leaseId":"1:default:a:x:00000000000000000000000000000000:1:00000000000000000000000000000000"}"#;
    assert_eq!(json(&server, "LockService/Acquire", &[], ASK).status, 200);
    for (method, body, status, code, reason) in [
        (
            "LockService/Acquire",
            ASK.replace("\"me\"", "\"you\""),
            409,
            "aborted",
            "LOCK_HELD",
        ),
        (
            "LockService/GetLock",
            ONE.replace("default", "none"),
            404,
            "not_found",
            "NAMESPACE_NOT_FOUND",
        ),
        (
            "LockService/GetLock",
            ONE.replace("name\"", "nam\""),
            400,
            "invalid_argument",
            "INVALID_FIELD",
        ),
        (
            "LockService/GetLock",
            String::new(),
            400,
            "invalid_argument",
            "INVALID_FIELD",
        ),
        (
            "LockService/GetLock",
            "[".repeat(30_000),
            400,
            "invalid_argument",
            "INVALID_FIELD",
        ),
        (
            "LockService/GetLock",
            format!("{ONE} {ONE}"),
            400,
            "invalid_argument",
            "INVALID_FIELD",
        ),
        (
            "LockService/Renew",
            renew.into(),
            400,
            "failed_precondition",
            "LEASE_LOST",
        ),
        ("LockService/None", "{}".into(), 501, "unimplemented", ""),
        ("None/None", "{}".into(), 501, "unimplemented", ""),
    ] {
        for version in VERSIONS {
            let answer = json(
                &server,
                method,
                &[version, &["-H", "x-request-id: mine-1"]].concat(),
                &body,
            );
            let expected = (status, (reason.to_owned(), code.to_owned()), "mine-1");
            assert_eq!(
                (answer.status, answer.error(), answer.header("x-request-id")),
                expected,
                "{answer:?}"
            );
        }
    }
    let held = json(&server, "LockService/Acquire", &[], &ASK.replace("\"me\"", "\"you\"")).json();
    let detail = &held["details"][0];
    assert_eq!(detail["type"], "google.rpc.ErrorInfo");
    let value = base64::Engine::decode(
        &base64::engine::general_purpose::STANDARD_NO_PAD,
        detail["value"].as_str().expect("text"),
    );
    let info = tonic_types::pb::ErrorInfo::decode(&value.expect("Base64")[..]).expect("a message");
    assert_eq!(
        (info.reason.as_str(), info.metadata["owner"].as_str()),
        ("LOCK_HELD", "me")
    );
}

#[test]
fn the_deadline_of_a_call_ends_its_wait() {
    let (server, _home) = start("");
    assert_eq!(json(&server, "LockService/Acquire", &[], ASK).status, 200);
    let wait = ASK
        .replace("\"me\"", "\"you\"")
        .replace("30s\"", "30s\",\"wait\":\"20s\"");
    for version in VERSIONS {
        let began = std::time::Instant::now();
        let timeout = [version, &["-H", "connect-timeout-ms: 500"]].concat();
        let answer = json(&server, "LockService/Acquire", &timeout, &wait);
        assert_eq!(answer.error(), ("WAIT_TIMEOUT".into(), "aborted".into()));
        assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    }
    for bad in [
        "connect-timeout-ms: soon",
        "connect-timeout-ms: 12345678901",
        "connect-protocol-version: 2",
    ] {
        let answer = json(&server, "LockService/GetLock", &["-H", bad], ONE);
        assert_eq!(
            (answer.status, answer.error().0.as_str()),
            (400, "INVALID_FIELD"),
            "{bad}"
        );
    }
    let version = ["-H", "connect-protocol-version: 1"];
    assert_eq!(json(&server, "LockService/GetLock", &version, ONE).status, 200);
}

#[test]
fn a_stream_has_a_message_for_each_event_and_one_for_its_end() {
    let (server, _home) = start("");
    assert_eq!(json(&server, "LockService/Acquire", &[], ASK).status, 200);
    let request = WatchLockRequest {
        namespace: "default".into(),
        name: "app/one".into(),
    };
    for version in VERSIONS {
        for (kind, sent) in [("json", ONE.as_bytes()), ("proto", &request.encode_to_vec())] {
            let content_type = format!("content-type: application/connect+{kind}");
            let arguments = [version, &["-H", &content_type, "-H", "connect-timeout-ms: 700"]].concat();
            let answer = call(&server, "LockService/WatchLock", &arguments, &prefixed(sent));
            assert_eq!(answer.status, 200);
            assert_eq!(format!("content-type: {}", answer.header("content-type")), content_type);
            let messages = answer.messages();
            let [(0, state), (2, end)] = &messages[..] else {
                panic!("{messages:?}");
            };
            let owner = if kind == "json" {
                let state: serde_json::Value = serde_json::from_slice(state).expect("JSON");
                state["state"]["holders"][0]["owner"].as_str().map(str::to_owned)
            } else {
                let state = WatchLockResponse::decode(&state[..]).expect("a message");
                format!("{state:?}").contains("owner: \"me\"").then(|| "me".to_owned())
            };
            assert_eq!(owner.as_deref(), Some("me"));
            let end: serde_json::Value = serde_json::from_slice(end).expect("JSON");
            assert_eq!(end["error"]["code"], "deadline_exceeded");
        }
    }
    // An error before the first message.
    let typed = ["-H", "content-type: application/connect+json"];
    for (sent, code) in [
        (prefixed(ONE.replace("default", "none").as_bytes()), "not_found"),
        (prefixed(b"{"), "invalid_argument"),
        (ONE.as_bytes().to_vec(), "invalid_argument"),
        (
            [prefixed(ONE.as_bytes()), prefixed(ONE.as_bytes())].concat(),
            "invalid_argument",
        ),
        ([&[1], &prefixed(ONE.as_bytes())[1..]].concat(), "invalid_argument"),
    ] {
        let answer = call(&server, "LockService/WatchLock", &typed, &sent);
        let messages = answer.messages();
        assert_eq!(
            (answer.status, messages.len(), messages[0].0),
            (200, 1, 2),
            "{messages:?}"
        );
        let end: serde_json::Value = serde_json::from_slice(&messages[0].1).expect("JSON");
        assert_eq!(end["error"]["code"], code, "{end}");
    }
}

#[test]
fn what_is_no_call_is_refused_with_what_would_be_one() {
    let (server, _home) = start("");
    let (unary, streams) = (
        "application/json, application/proto",
        "application/connect+json, application/connect+proto",
    );
    let typed = |content_type: &str| format!("content-type: {content_type}");
    for (method, content_type, accepted) in [
        ("GetLock", "text/plain", unary),
        ("GetLock", "application/x-www-form-urlencoded", unary),
        ("GetLock", "application/grpc", unary),
        ("GetLock", "application/connect+json", unary),
        ("WatchLock", "application/json", streams),
    ] {
        let answer = call(
            &server,
            &format!("LockService/{method}"),
            &["-H", &typed(content_type)],
            ONE.as_bytes(),
        );
        assert_eq!(
            (answer.status, answer.header("accept-post")),
            (415, accepted),
            "{content_type}"
        );
    }
    let charset = call(
        &server,
        "LockService/GetLock",
        &["-H", "content-type: Application/JSON; charset=utf-8"],
        ONE.as_bytes(),
    );
    assert_eq!(charset.status, 200);
    for method in ["GET", "PUT", "OPTIONS"] {
        let answer = json(&server, "LockService/GetLock", &["-X", method], ONE);
        assert_eq!((answer.status, answer.header("allow")), (405, "POST"), "{method}");
    }
    for method in ["LockService/KeepAlive", "LockService/Session"] {
        let answer = json(&server, method, &[], "{}");
        assert_eq!((answer.status, answer.error().1.as_str()), (501, "unimplemented"));
        assert!(
            answer.json()["message"]
                .as_str()
                .is_some_and(|text| text.contains("gRPC"))
        );
    }
    let packed = json(&server, "LockService/GetLock", &["-H", "content-encoding: gzip"], ONE);
    assert_eq!((packed.status, packed.header("accept-encoding")), (501, "identity"));
    let typed = [
        "-H",
        "content-type: application/connect+json",
        "-H",
        "connect-content-encoding: gzip",
    ];
    let packed = call(&server, "LockService/WatchLock", &typed, &prefixed(ONE.as_bytes()));
    assert_eq!(
        (packed.status, packed.header("connect-accept-encoding")),
        (200, "identity")
    );
}

// G167
#[test]
fn identities_rules_metrics_and_the_log_are_those_of_all_calls() {
    let config = format!(
        "metrics_listen = \"127.0.0.1:0\"\n[log]\nlevel = \"debug\"\n{}",
        guarded()
    );
    let (server, _home) = start(&config);
    let bearer = ["-H", "authorization: Bearer secret"];
    let other = ASK.replace("app/", "else/");
    for (number, version) in VERSIONS.into_iter().enumerate() {
        let own = ASK.replace("app/one", &format!("app/{number}"));
        let asked =
            |arguments: &[&str], body: &str| json(&server, "LockService/Acquire", &[version, arguments].concat(), body);
        assert_eq!(
            asked(&[], ASK).error(),
            ("UNAUTHENTICATED".into(), "unauthenticated".into())
        );
        let wrong = asked(&["-H", "authorization: Bearer wrong"], ASK);
        assert_eq!((wrong.status, wrong.header("fencepost-cause").is_empty()), (401, false));
        assert_eq!(asked(&bearer, &other).status, 403);
        assert_eq!(
            asked(&[&bearer[..], &["-H", "x-request-id: by-curl"]].concat(), &own).status,
            200
        );
    }
    until("the line of the call", || server.said("by-curl").then_some(()));
    let address = server.metrics.clone().expect("a port");
    let metrics = Command::new("curl")
        .args(["-s", &format!("http://{address}/metrics")])
        .output();
    let metrics = String::from_utf8(metrics.expect("curl").stdout).expect("text");
    let counted = |reason: &str| {
        let of = |line: &&str| line.contains("method=\"Acquire\"") && line.contains(&format!("reason=\"{reason}\""));
        let lines = metrics
            .lines()
            .filter(|line| line.starts_with("fencepost_requests_total"));
        let counts = lines
            .filter(of)
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u32>().ok());
        counts.sum::<u32>()
    };
    let all = ["UNAUTHENTICATED", "PERMISSION_DENIED", "OK"].map(counted);
    assert_eq!(all, [4, 2, 2], "{metrics}");
}

// G169
#[test]
fn only_pages_of_the_configured_origins_may_call() {
    let (server, _home) = start("[server]\ncors_origins = [\"https://app.example\"]\n");
    let page = ["-H", "origin: https://app.example"];
    let answer = json(&server, "LockService/GetLock", &page, ONE);
    assert_eq!(
        (answer.status, answer.header("access-control-allow-origin")),
        (200, "https://app.example")
    );
    let asked = [
        &page[..],
        &["-X", "OPTIONS", "-H", "access-control-request-method: POST"],
    ]
    .concat();
    let answer = json(&server, "LockService/GetLock", &asked, "");
    assert_eq!(
        (answer.status, answer.header("access-control-allow-methods")),
        (204, "POST")
    );
    assert!(answer.header("access-control-allow-headers").contains("content-type"));
    let (closed, _home) = start("");
    for (server, origin) in [
        (&server, "https://evil.example"),
        (&server, "null"),
        (&closed, "https://app.example"),
    ] {
        for method in ["POST", "OPTIONS"] {
            let origin = format!("origin: {origin}");
            let answer = json(server, "LockService/GetLock", &["-X", method, "-H", &origin], ONE);
            assert_eq!(
                (answer.status, answer.header("access-control-allow-origin")),
                (403, ""),
                "{origin}"
            );
        }
    }
}

#[test]
fn the_health_of_the_server_is_told_over_http_too() {
    let (server, _home) = start("");
    let url = format!("http://{}/grpc.health.v1.Health/Check", server.address);
    let typed = ["-s", "-d", "{}", "-H", "content-type: application/json", &url];
    let output = Command::new("curl").args(typed).output().expect("curl");
    assert_eq!(output.stdout, br#"{"status":"SERVING"}"#);
    let large = GetLockRequest {
        namespace: "default".into(),
        name: "x".repeat(70_000),
    };
    let typed = ["-H", "content-type: application/proto"];
    let answer = call(&server, "LockService/GetLock", &typed, &large.encode_to_vec());
    assert_eq!(answer.error(), ("INVALID_FIELD".into(), "invalid_argument".into()));
    assert!(
        answer.json()["message"]
            .as_str()
            .is_some_and(|text| text.contains("at most 65536 bytes"))
    );
}
