//! Addresses where nobody answers.

use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::cli::program::{Fixture, asking, run, text};

/// An address where connections are neither accepted nor refused, as where a machine is off: its queue is full.
struct Dead {
    address: String,
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
    _runtime: Runtime,
}

impl Dead {
    fn new() -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let (listener, address, queued) = runtime.block_on(async {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
            let listener = socket.listen(0).expect("it listens");
            let address = listener.local_addr().expect("an address");
            let mut queued = Vec::new();
            while let Ok(stream) = timeout(Duration::from_millis(300), TcpStream::connect(address)).await {
                queued.push(stream.expect("a connection"));
            }
            (listener, address, queued)
        });
        Self {
            address: address.to_string(),
            _listener: listener,
            _queued: queued,
            _runtime: runtime,
        }
    }
}

#[test]
fn a_dead_first_address_takes_no_time_of_a_wait() {
    let fixture = Fixture::start();
    fixture.held("default/a", "me");
    let dead = Dead::new();
    let both = format!("{},{}", dead.address, fixture.server.address);
    let begin = Instant::now();
    let output = run(asking(&both, ["lock", "default/a", "--wait", "1s", "--", "true"]));
    let took = begin.elapsed();
    assert_eq!(output.status.code(), Some(121), "{}", text(&output.stderr));
    assert!(took < Duration::from_secs(4), "{took:?}");
}

#[test]
fn hosts_may_have_underscores_as_those_of_compose() {
    let output = run(asking("no_such_server:50051", ["list", "default"]));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(123), "{said}");
    assert!(said.contains("no server answers at no_such_server:50051"), "{said}");
    let check = ["config", "show", "--listen", "lock_server:50051", "--insecure=true"];
    let output = run(asking("", check));
    let shown = text(&output.stdout);
    assert!(shown.contains("lock_server:50051"), "{shown}{}", text(&output.stderr));
}
