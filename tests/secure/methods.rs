//! Every method of the API, found in its own descriptors and called by an unauthenticated caller.

use bytes::{Buf, BufMut, Bytes};
use fencepost::api::proto::DESCRIPTORS;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, Value};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status};

use super::asks::reason;
use super::fixture::{Caller, Fixture, access, ask, bearer, everything, rule};
use fencepost::api::proto::Lease;
use fencepost::auth::{PolicySettings, Rules, Verb};

/// Messages as they are.
#[derive(Debug, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// A request in which every field that names something names this lease's.
fn request(kind: &MessageDescriptor, lease: &Lease) -> Bytes {
    let mut message = DynamicMessage::new(kind.clone());
    for (field, value) in [
        ("namespace", Value::String("jobs".into())),
        ("name", Value::String("a".into())),
        ("election", Value::String("a".into())),
        ("candidate", Value::String("me".into())),
        ("owner", Value::String("me".into())),
        ("lease_id", Value::String(lease.lease_id.clone())),
        ("fencing_token", Value::U64(lease.fencing_token)),
    ] {
        if kind.get_field_by_name(field).is_some() {
            message.set_field_by_name(field, value);
        }
    }
    message.encode_to_vec().into()
}

/// What each method answers to a caller.
async fn answers(caller: &Caller, lease: &Lease) -> Vec<(String, Option<Status>)> {
    let all = DescriptorPool::decode(DESCRIPTORS).expect("descriptors");
    let ours = all
        .services()
        .filter(|service| service.full_name().starts_with("fencepost."));
    let mut answers = Vec::new();
    for method in ours.flat_map(|service| service.methods().collect::<Vec<_>>()) {
        let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
        let ask = caller.request(request(&method.input(), lease));
        let mut calls = tonic::client::Grpc::new(caller.channel.clone());
        calls.ready().await.expect("a connection");
        let called = calls.server_streaming(ask, path.parse().expect("a path"), Raw).await;
        let answer = match called {
            Ok(answer) => answer.into_inner().message().await.map(drop),
            Err(status) => Err(status),
        };
        answers.push((path, answer.err()));
    }
    assert!(answers.len() >= 10, "{answers:?}");
    answers
}

fn settings(rules: Rules) -> PolicySettings {
    PolicySettings {
        bearers: vec![bearer("ci"), bearer("all")],
        rules,
        ..PolicySettings::default()
    }
}

async fn leased(fixture: &Fixture) -> (Caller, Lease) {
    let all = fixture.caller(Some("secret-all")).await;
    let lease = all.acquire(ask("jobs", "a")).await.expect("it is free");
    (all, lease)
}

// G151
#[tokio::test(flavor = "multi_thread")]
async fn every_method_is_denied_to_an_identity_without_rules() {
    let verbs = [Verb::Acquire, Verb::Read, Verb::Admin];
    let rules = Rules::new(vec![
        rule(&["token:all"], &["*"], &[""], &verbs),
        rule(&["token:c", "token:ci-*", "jwt:ci"], &["*"], &[""], &verbs),
    ]);
    let fixture = Fixture::open(access(&settings(rules))).await;
    let (all, lease) = leased(&fixture).await;
    for (path, answer) in answers(&all.showing("secret-ci"), &lease).await {
        let status = answer.expect(&path);
        assert_eq!(status.code(), Code::PermissionDenied, "{path}: {status:?}");
        assert_eq!(reason(&status), "PERMISSION_DENIED", "{path}");
    }
    let state = all.inspect("jobs", "a").await.expect("a state");
    assert_eq!(state.holders.len(), 1, "nothing was done");
}

// G150
#[tokio::test(flavor = "multi_thread")]
async fn every_method_asks_who_calls() {
    let fixture = Fixture::open(access(&settings(everything()))).await;
    let (all, lease) = leased(&fixture).await;
    for bad in [fixture.caller(None).await, all.showing("wrong")] {
        for (path, answer) in answers(&bad, &lease).await {
            let status = answer.expect(&path);
            assert_eq!(status.code(), Code::Unauthenticated, "{path}: {status:?}");
            assert_eq!(reason(&status), "UNAUTHENTICATED", "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_method_is_denied_to_whom_everything_is_allowed() {
    let fixture = Fixture::open(access(&settings(everything()))).await;
    let (all, lease) = leased(&fixture).await;
    for (path, answer) in answers(&all, &lease).await {
        let code = answer.map_or(Code::Ok, |status| status.code());
        assert!(
            !matches!(code, Code::PermissionDenied | Code::Unauthenticated),
            "{path}: {code:?}"
        );
    }
}
