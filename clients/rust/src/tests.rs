use futures::FutureExt;
use tokio::net::TcpListener;
use tokio::runtime::Handle;

use super::*;

/// A client, and what accepts its connections and never answers.
pub(crate) async fn client() -> (Client, TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let client = Client::connect(&[address.parse().expect("an address")]).await;
    (client.expect("it accepts"), listener, address)
}

#[tokio::test]
async fn calls_of_a_closed_client_fail_at_once_and_leave_nothing_behind() {
    let (client, _listener, _) = client().await;
    client.close().await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    macro_rules! closed {
        ($($call:expr,)+) => {$(
            let failed = $call.now_or_never().expect("at once").map(drop);
            assert_eq!(failed, Err(Error::Closed), stringify!($call));
        )+};
    }
    let wait = Duration::from_secs(9);
    closed! {
        client.acquire("n", "a", "me").lease(),
        client.acquire("n", "a", "me").wait(wait).into_future(),
        client.acquire_all("n", &["a", "b"], "me").wait(wait).guards(),
        client.campaign("n", "a", "me", "here").lease(),
        client.renew("id", None),
        client.release("id"),
        client.update_metadata("id", BTreeMap::new()),
        client.get("n", "a"),
        client.list("n", "", ""),
        client.list_in_large_pages("n", "", ""),
        client.watch("n", "a"),
        client.check_token("n", "a", 1),
        client.force_release("n", "a", 1),
        client.admit("n", ""),
        client.namespaces(),
        client.health(None),
        client.sessions(""),
        client.proclaim("id", "there"),
        client.leader("n", "a"),
        client.observe("n", "a"),
    }
    assert_eq!(Handle::current().metrics().num_alive_tasks(), tasks);
}

#[test]
fn a_certificate_and_its_key_belong_together() {
    let (certificate, key) = ("FENCEPOST_CERT_FILE", "FENCEPOST_KEY_FILE");
    for (set, missing) in [(certificate, key), (key, certificate)] {
        let problem = format!("{missing} is not set: a certificate and its key belong together");
        let refused = credentials_of(|name| (name == set).then(|| "file.pem".into()));
        assert_eq!(refused.map(drop), Err(Error::BadCredentials { problem }));
    }
    let all = credentials_of(|name| Some(format!("{name}.pem"))).map(|all| format!("{all:?}"));
    let all = all.expect("both are set");
    assert!(all.contains(&format!("{certificate}.pem")), "{all}");
    assert!(credentials_of(|_| None).is_ok());
}
