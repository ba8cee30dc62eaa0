use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::*;
use crate::api::settings::Settings;

async fn pair(terms: &ConnectionSettings) -> (UnixStream, Option<Connection>) {
    let (client, server) = UnixStream::pair().unwrap();
    (client, terms.admit((Socket::Right(server), Peer::Unix).into()))
}

fn terms(limit: usize) -> (ConnectionSettings, CancellationToken) {
    let cut = CancellationToken::new();
    let drain = CancellationToken::new();
    let settings = Settings {
        max_connections: limit,
        peer_share: 100,
        ..Settings::default()
    };
    let capacity = Capacity::new(&settings, None);
    (ConnectionSettings::new(&settings, drain, cut.clone(), capacity), cut)
}

/// Sends as many bytes as a client that starts HTTP/2.
async fn begin(client: &mut UnixStream, connection: &mut Connection) {
    client.write_all(&[7; PREFACE]).await.unwrap();
    let mut heard = [0; PREFACE];
    connection.read_exact(&mut heard).await.unwrap();
    assert_eq!(heard, [7; PREFACE]);
}

#[tokio::test]
async fn a_cut_ends_open_connections() {
    let (terms, cut) = terms(1);
    let (_client, connection) = pair(&terms).await;
    let mut connection = connection.unwrap();
    let (read, ()) = tokio::join!(connection.read_u8(), async { cut.cancel() });
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_any_byte_is_closed() {
    let (terms, _cut) = terms(1);
    let (_client, connection) = pair(&terms).await;
    let mut connection = connection.unwrap();
    let read = tokio::time::timeout(Duration::from_secs(60), connection.read_u8()).await;
    assert_eq!(read.expect("in time").unwrap_err().kind(), io::ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_complete_preface_is_closed() {
    let (terms, _cut) = terms(1);
    let (mut client, connection) = pair(&terms).await;
    let mut connection = connection.unwrap();
    client.write_all(&[7; PREFACE - 1]).await.unwrap();
    let mut heard = [0; PREFACE];
    let read = tokio::time::timeout(Duration::from_secs(60), connection.read_exact(&mut heard)).await;
    assert_eq!(read.expect("in time").unwrap_err().kind(), io::ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn a_drain_closes_connections_without_first_bytes_at_once() {
    let (terms, _cut) = terms(2);
    let (_silent, silent) = pair(&terms).await;
    let (mut client, begun) = pair(&terms).await;
    let (mut silent, mut begun) = (silent.unwrap(), begun.unwrap());
    begin(&mut client, &mut begun).await;
    terms.drain.cancel();
    let began = tokio::time::Instant::now();
    assert_eq!(silent.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(began.elapsed(), Duration::ZERO);
    let silence = tokio::time::timeout(Duration::from_secs(60), begun.read_u8()).await;
    assert!(silence.is_err(), "a connection that has started finishes its calls");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_has_started_may_be_silent() {
    let (terms, _cut) = terms(1);
    let (mut client, connection) = pair(&terms).await;
    let mut connection = connection.unwrap();
    begin(&mut client, &mut connection).await;
    let silence = tokio::time::timeout(Duration::from_secs(3600), connection.read_u8()).await;
    assert!(silence.is_err());
}

#[tokio::test]
async fn connections_past_the_limit_are_closed() {
    let (terms, _cut) = terms(1);
    let (_first_client, first) = pair(&terms).await;
    let (mut second_client, second) = pair(&terms).await;
    assert!(first.is_some() && second.is_none());
    assert_eq!(second_client.read(&mut [0]).await.unwrap(), 0);
    drop(first);
    assert!(pair(&terms).await.1.is_some());
}

/// Notes that it was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_connection_reads_so_much_in_one_step_and_is_woken_for_the_rest() {
    let (terms, cut) = terms(1);
    let (mut client, connection) = pair(&terms).await;
    let mut connection = connection.unwrap();
    // The runtime knows then that the socket can be read.
    begin(&mut client, &mut connection).await;
    let usage = connection.remote.usage.clone().unwrap();
    client.write_all(&[7; 3 * READ_LIMIT]).await.unwrap();
    for _ in 0..2 {
        ConnectionUsage::step(Some(&*usage), || ());
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let mut cx = Context::from_waker(&waker);
        let mut bytes = vec![0; 2 * READ_LIMIT];
        let mut first = ReadBuf::new(&mut bytes[..READ_LIMIT / 4]);
        assert!(Pin::new(&mut connection).poll_read(&mut cx, &mut first).is_ready());
        let read = first.filled().len();
        let mut rest = ReadBuf::new(&mut bytes);
        assert!(Pin::new(&mut connection).poll_read(&mut cx, &mut rest).is_ready());
        assert_eq!(read + rest.filled().len(), READ_LIMIT);
        assert!(!woken.0.load(Ordering::SeqCst));
        assert!(Pin::new(&mut connection).poll_read(&mut cx, &mut rest).is_pending());
        assert!(woken.0.load(Ordering::SeqCst), "there is more to read");
        ConnectionUsage::step(Some(&*usage), || ());
    }
    cut.cancel();
    let mut bytes = vec![0; READ_LIMIT];
    ConnectionUsage::step(Some(&*usage), || ());
    let mut buf = ReadBuf::new(&mut bytes);
    assert!(
        futures::poll!(std::future::poll_fn(
            |cx| Pin::new(&mut connection).poll_read(cx, &mut buf)
        ))
        .is_ready()
    );
    let cut = futures::poll!(pin!(connection.read_u8()));
    assert!(
        matches!(cut, Poll::Ready(Err(_))),
        "a client that always sends is cut too"
    );
}

#[tokio::test]
async fn headers_count_as_unsent_until_the_burst_with_them_is_flushed() {
    let (terms, _cut) = terms(1);
    let (mut client, connection) = pair(&terms).await;
    let mut connection = connection.unwrap();
    let usage = connection.remote.usage.clone().unwrap();
    let unsent = || usage.answers.of_whole_connection().unwrap();
    usage.answers.count_headers();
    assert!(
        futures::poll!(pin!(connection.write(b"a"))).is_pending(),
        "the burst is gathered"
    );
    ConnectionUsage::step(Some(&*usage), || ());
    assert!(unsent() > 0);
    while futures::poll!(pin!(connection.write(&[0; 1 << 16]))).is_ready() {}
    ConnectionUsage::step(Some(&*usage), || ());
    assert!(unsent() > 0, "the socket is full");
    let reading = tokio::spawn(async move { tokio::io::copy(&mut client, &mut tokio::io::sink()).await });
    connection.write_all(b"a").await.unwrap();
    connection.flush().await.unwrap();
    ConnectionUsage::step(Some(&*usage), || ());
    assert_eq!(unsent(), 0);
    drop(connection);
    reading.await.unwrap().unwrap();
}

#[tokio::test]
async fn each_burst_of_writes_yields_once() {
    let (terms, _cut) = terms(1);
    let (mut client, connection) = pair(&terms).await;
    let mut connection = connection.unwrap();
    for _ in 0..2 {
        // The first write yields and writes nothing.
        assert!(futures::poll!(pin!(connection.write(b"a"))).is_pending());
        assert!(futures::poll!(pin!(client.read_u8())).is_pending());
        // The next writes proceed until the burst is flushed.
        assert!(futures::poll!(pin!(connection.write(b"a"))).is_ready());
        assert!(futures::poll!(pin!(connection.write(b"b"))).is_ready());
        connection.flush().await.unwrap();
        let mut burst = [0; 2];
        client.read_exact(&mut burst).await.unwrap();
        assert_eq!(&burst, b"ab");
    }
}

#[tokio::test]
async fn the_oldest_unauthenticated_connection_is_closed_at_the_limit_of_connections() {
    let (terms, _cut) = terms(2);
    let terms = terms.asking();
    let (_known_client, known) = pair(&terms).await;
    let mut known = known.unwrap();
    known.remote.authenticated(&Identity::authenticated("token:a")).unwrap();
    let (_client, unauthenticated) = pair(&terms).await;
    let mut unauthenticated = unauthenticated.unwrap();
    assert!(pair(&terms).await.1.is_none(), "the limit is reached");
    assert_eq!(
        unauthenticated.read_u8().await.unwrap_err().kind(),
        io::ErrorKind::ConnectionAborted
    );
    drop(unauthenticated);
    assert!(pair(&terms).await.1.is_some());
    assert!(
        futures::poll!(pin!(known.read_u8())).is_pending(),
        "the authenticated connection stays open"
    );
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_client_does_not_read_its_socket_is_closed() {
    let (terms, _cut) = terms(1);
    let (mut client, connection) = pair(&terms).await;
    let mut connection = connection.unwrap();
    begin(&mut client, &mut connection).await;
    let began = tokio::time::Instant::now();
    let written = tokio::time::timeout(Duration::from_secs(60), connection.write_all(&vec![0; 16 << 20])).await;
    assert_eq!(written.expect("in time").unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(began.elapsed() < Duration::from_secs(15));
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_client_reads_slowly_stays_open() {
    let (terms, _cut) = terms(1);
    let (mut client, connection) = pair(&terms).await;
    let mut connection = connection.unwrap();
    begin(&mut client, &mut connection).await;
    let reads = async {
        let mut part = vec![0; 1 << 20];
        for _ in 0..16 {
            tokio::time::sleep(UNREAD_LIMIT / 2).await;
            client.read_exact(&mut part).await.unwrap();
        }
    };
    let bytes = vec![0; 16 << 20];
    let written = tokio::time::timeout(Duration::from_secs(3600), async {
        tokio::join!(connection.write_all(&bytes), reads)
    });
    written.await.expect("all is read").0.unwrap();
}

#[tokio::test]
async fn a_connection_past_the_share_of_its_identity_stays_unauthenticated() {
    let (terms, _cut) = terms(4);
    let terms = terms.asking();
    let prove = |connection: &mut Connection| {
        connection
            .remote
            .authenticated(&Identity::authenticated("token:a"))
            .map(drop)
    };
    let mut authenticated = Vec::new();
    for _ in 0..2 {
        let (client, connection) = pair(&terms).await;
        let mut connection = connection.unwrap();
        prove(&mut connection).unwrap();
        authenticated.push((client, connection));
    }
    let (_client, third) = pair(&terms).await;
    let mut third = third.unwrap();
    assert!(prove(&mut third).is_err(), "the share of an identity is two");
    // One connection may be unauthenticated.
    let _fourth = pair(&terms).await;
    assert_eq!(
        third.read_u8().await.unwrap_err().kind(),
        io::ErrorKind::ConnectionAborted
    );
}

#[tokio::test]
async fn one_address_has_its_share_of_the_connections() {
    let (cut, drain) = (CancellationToken::new(), CancellationToken::new());
    let settings = Settings {
        max_connections: 4,
        ..Settings::default()
    };
    let terms = ConnectionSettings::new(&settings, drain, cut, Capacity::new(&settings, None));
    let (first, second) = (pair(&terms).await, pair(&terms).await);
    assert!(first.1.is_some() && second.1.is_some());
    assert!(
        pair(&terms).await.1.is_none(),
        "the share of an address is half of the limit"
    );
    let other = Peer::Tcp("127.0.0.1:1".parse().unwrap());
    let (_client, server) = UnixStream::pair().unwrap();
    assert!(terms.admit((Socket::Right(server), other).into()).is_some());
}
