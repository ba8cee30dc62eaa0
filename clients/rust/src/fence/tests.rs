use std::convert::Infallible;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tonic::codegen::http::{Request, Response, StatusCode};
use tower::{Layer, ServiceExt, service_fn};

use super::*;

fn token(number: u64) -> FencingToken {
    FencingToken::new("a", number).expect("a token")
}

/// A store whose ETag is that of the body alone, as in S3. What another holder writes may come before the next write.
#[derive(Default)]
struct Store {
    body: Mutex<Option<Vec<u8>>>,
    before_put: Mutex<Option<Vec<u8>>>,
}

fn etag(body: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    hasher.finish().to_string()
}

impl ObjectStore for &Store {
    type Error = Infallible;

    async fn get(&self) -> Result<Option<(Vec<u8>, String)>, Infallible> {
        let body = self.body.lock().clone();
        Ok(body.map(|body| (body.clone(), etag(&body))))
    }

    async fn put(&self, body: Vec<u8>, expected: Option<&str>) -> Result<bool, Infallible> {
        let mut stored = self.body.lock();
        if let Some(newer) = self.before_put.lock().take() {
            *stored = Some(newer);
        }
        let is_expected = stored.as_deref().map(etag).as_deref() == expected;
        if is_expected {
            *stored = Some(body);
        }
        Ok(is_expected)
    }
}

#[tokio::test]
async fn an_object_refuses_a_paused_holder_also_with_the_bytes_that_were_there() {
    let store = Store::default();
    let report = FencedObject(&store);
    assert_eq!(report.read(&token(33)).await.expect("no object"), None);
    report.write(&token(33), b"first\n\0").await.expect("it is held");
    // One that is paused between its look and its write finds what the newer one has put there, though the data is the same.
    *store.before_put.lock() = Some(b"fencing-token: 34\n1\nfirst\n\0".to_vec());
    let late = report.write(&token(33), b"late").await;
    assert!(matches!(late, Err(ObjectError::Stale(stale)) if stale.token == 33));
    assert!(matches!(report.read(&token(33)).await, Err(ObjectError::Stale(_))));
    report.write(&token(34), b"").await.expect("it is held");
    let empty = report.read(&token(35)).await.expect("it is held");
    assert_eq!(empty.as_deref(), Some(&b""[..]));
    *store.body.lock() = Some(b"no token".to_vec());
    assert!(matches!(report.read(&token(35)).await, Err(ObjectError::NoToken)));
}

/// Has an ETag that is never that of the next write.
struct Odd(&'static str);

impl ObjectStore for Odd {
    type Error = Infallible;

    async fn get(&self) -> Result<Option<(Vec<u8>, String)>, Infallible> {
        Ok(Some((b"fencing-token: 1\n1\n".to_vec(), self.0.to_owned())))
    }

    async fn put(&self, _: Vec<u8>, _: Option<&str>) -> Result<bool, Infallible> {
        Ok(false)
    }
}

#[tokio::test]
async fn an_object_without_etag_and_a_store_that_always_refuses_are_errors() {
    let without = FencedObject(Odd("")).read(&token(33)).await;
    assert!(matches!(without, Err(ObjectError::NoETag)), "{without:?}");
    let refused = FencedObject(Odd("other")).write(&token(33), b"first").await;
    assert!(matches!(refused, Err(ObjectError::Refused)), "{refused:?}");
}

#[test]
fn a_file_refuses_a_paused_holder_and_lets_one_in_at_a_time() {
    let folder = std::env::temp_dir().join(format!("fence-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("report");
    let (ended, newer) = mpsc::channel();
    with_file(&path, &token(33), |report| {
        let report = report.to_owned();
        thread::spawn(move || {
            let written = with_file(&report, &token(34), |report| fs::write(report, "6"));
            ended.send(written).expect("it is received");
        });
        let early = newer.recv_timeout(Duration::from_millis(300));
        assert!(early.is_err(), "it did not wait");
        fs::write(&path, "5").expect("a file");
    })
    .expect("it is held");
    let written = newer.recv_timeout(Duration::from_secs(30)).expect("it ends");
    written.expect("it is newer").expect("a file");
    let late = with_file(&path, &token(33), |report| fs::write(report, "late"));
    assert!(matches!(late, Err(FileError::Stale(_))));
    assert_eq!(fs::read_to_string(&path).expect("a file"), "6");
    // A shell script leaves the end of a line behind the token.
    fs::write(folder.join("report.token"), "35\n").expect("a file");
    assert_eq!(with_file(&path, &token(35), |_| 7).expect("it is held"), 7);
    fs::remove_dir_all(folder).expect("a folder");
}

#[tokio::test]
async fn a_service_answers_412_to_a_lower_token_and_428_to_none() {
    let handler = service_fn(async |request: Request<()>| {
        let given: Option<&RequestToken> = request.extensions().get();
        let refused = given.and_then(|token| token.of("a").compare(34).err());
        Ok::<_, Infallible>(refused.map_or_else(|| Response::new(""), |stale| stale.response()))
    });
    let service = FenceLayer.layer(handler);
    let put = async |tokens: &[&str]| {
        let mut request = Request::put("/");
        for token in tokens {
            request = request.header(HEADER, *token);
        }
        let request = request.body(()).expect("a request");
        service
            .clone()
            .oneshot(request)
            .await
            .expect("an answer")
            .status()
            .as_u16()
    };
    assert_eq!(put(&[]).await, 428);
    assert_eq!(put(&["34"]).await, 200);
    assert_eq!(put(&["33"]).await, 412);
    for several in [["34", "34"], ["35", "34"]] {
        assert_eq!(put(&several).await, 400);
    }
    for bad in [
        "",
        "0",
        "-1",
        "3 4",
        "+3",
        "1_0",
        "\u{b2}",
        "9007199254740992",
        "00000000000000034",
        "x",
        "34, 34",
    ] {
        assert_eq!(put(&[bad]).await, 400, "{bad:?}");
    }
    let get = service
        .clone()
        .oneshot(Request::get("/").body(()).expect("a request"))
        .await;
    assert_eq!(get.expect("an answer").status(), StatusCode::OK);
}

#[test]
fn what_is_no_token_is_refused() {
    for bad in [0, END, u64::MAX] {
        assert_eq!(FencingToken::new("a", bad), Err(InvalidToken(bad.to_string())));
    }
    assert_eq!(token(END - 1).header(), "9007199254740991");
}
