//! Servers that answer without end.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::server::{Server, resident};

/// How long the answers may take to be refused, on a busy machine.
const REFUSED_WITHIN: Duration = Duration::from_secs(60);

/// A server that answers each connection with `head`, and then with `rest` again and again. Counts its connections.
fn answers_without_end(head: &'static [u8], rest: &[u8]) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (connections, counted) = (Arc::<AtomicUsize>::default(), rest.repeat(65_536 / rest.len()));
    let count = Arc::clone(&connections);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::Relaxed);
            let rest = counted.clone();
            thread::spawn(move || flood(stream, head, &rest));
        }
    });
    (port, connections)
}

fn flood(mut stream: TcpStream, head: &[u8], rest: &[u8]) -> Option<()> {
    stream.read_exact(&mut [0; 1]).ok()?;
    stream.write_all(head).ok()?;
    loop {
        stream.write_all(rest).ok()?;
    }
}

// G190
#[test]
fn answers_without_end_are_refused_before_they_take_the_servers_memory() {
    let floods = [
        (&b"$2147483647\r\n"[..], &b"x"[..]),
        (b"*2147483647\r\n", b":1\r\n"),
        (b"*1000000\r\n", b"*1000\r\n"),
        (b"+", b"a"),
        (b">1000000000\r\n", b"$3\r\nabc\r\n"),
    ];
    let floods = floods.map(|(head, rest)| answers_without_end(head, rest));
    let mut config = "[namespaces.here]\nembedded.path = ':memory:'\n".to_owned();
    for (at, (port, _)) in floods.iter().enumerate() {
        let redis = format!("backend = 'redis'\nredis.urls = ['redis://127.0.0.1:{port}']\n");
        config += &format!("[namespaces.there-{at}]\n{redis}");
    }
    let nodes = floods.each_ref().map(|(port, _)| format!("'redis://127.0.0.1:{port}'"));
    config += &format!(
        "[namespaces.several]\nbackend = 'redlock'\nredlock.nodes = [{}]\n",
        nodes.join(", ")
    );
    let home = tempfile::tempdir().expect("a directory");
    std::fs::write(home.path().join("f.toml"), config).expect("a file");
    let server = Server::start_with(&home, &["--listen", "127.0.0.1:0", "--config", "f.toml"]);
    let since = Instant::now();
    let mut most = 0;
    while floods
        .iter()
        .any(|(_, connections)| connections.load(Ordering::Relaxed) < 10)
    {
        most = most.max(resident(server.id()));
        assert!(since.elapsed() < REFUSED_WITHIN, "each connection ends: {floods:?}");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(most < 400 << 20, "{} MiB", most >> 20);
    assert!(server.said("larger than 64 MiB"), "the log says why");
}
