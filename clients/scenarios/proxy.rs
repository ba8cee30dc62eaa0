//! A TCP proxy that can stall, delay, cut and refuse connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(5);

/// What the proxy does with the bytes of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    All,
    /// Nothing arrives, and nobody is told.
    Nothing,
    /// Each byte arrives so much later.
    After(Duration),
}

/// A connection, and what it does in each direction.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    up: Arc<Mutex<Pass>>,
    down: Arc<Mutex<Pass>>,
}

#[derive(Default)]
struct State {
    connections: Vec<Connection>,
    refuses: bool,
    new: Option<(Pass, Pass)>,
}

/// A proxy in front of one address.
pub struct Proxy {
    pub address: String,
    state: Arc<Mutex<State>>,
}

impl Proxy {
    pub fn before(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address").to_string();
        let (state, target) = (Arc::new(Mutex::new(State::default())), target.to_owned());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                accept(&shared, client, &target);
            }
        });
        Self { address, state }
    }

    /// What the connections that are open now do: from the client, and to it. New ones pass everything.
    pub fn present(&self, up: Pass, down: Pass) {
        let state = self.state.lock().expect("no panic");
        for connection in &state.connections {
            *connection.up.lock().expect("no panic") = up;
            *connection.down.lock().expect("no panic") = down;
        }
    }

    /// What all connections do, new ones too.
    pub fn all(&self, up: Pass, down: Pass) {
        self.state.lock().expect("no panic").new = Some((up, down));
        self.present(up, down);
    }

    /// Resets the open connections.
    pub fn cut(&self) {
        for connection in self.state.lock().expect("no panic").connections.drain(..) {
            close(&connection.client, &connection.server);
        }
    }

    /// Closes new connections at once, and the open ones; or accepts again.
    pub fn refuse(&self, refuses: bool) {
        self.state.lock().expect("no panic").refuses = refuses;
        if refuses {
            self.cut();
        }
    }
}

fn close(client: &TcpStream, server: &TcpStream) {
    // They fail only where the other end has closed it.
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

fn accept(state: &Mutex<State>, client: TcpStream, target: &str) {
    let mut state = state.lock().expect("no panic");
    let Some(server) = (!state.refuses).then(|| TcpStream::connect(target).ok()).flatten() else {
        return;
    };
    let (up, down) = state.new.unwrap_or((Pass::All, Pass::All));
    let (up, down) = (Arc::new(Mutex::new(up)), Arc::new(Mutex::new(down)));
    let again = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a TCP socket");
    }
    forward(again(&client), again(&server), Arc::clone(&up));
    forward(again(&server), again(&client), Arc::clone(&down));
    state.connections.push(Connection {
        client,
        server,
        up,
        down,
    });
}

/// Copies in threads of its own: one reads and notes the time, one writes when it is time.
fn forward(mut from: TcpStream, mut to: TcpStream, pass: Arc<Mutex<Pass>>) {
    let (sender, receiver) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
    let (reader, writer) = (from.try_clone(), to.try_clone());
    thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if sender.send((Instant::now(), bytes[..count].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        'all: for (read, bytes) in receiver {
            loop {
                match *pass.lock().expect("no panic") {
                    Pass::All => break,
                    Pass::After(delay) if read.elapsed() >= delay => break,
                    _ => {}
                }
                thread::sleep(TICK);
                if matches!(to.take_error(), Ok(Some(_)) | Err(_)) {
                    break 'all;
                }
            }
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        if let (Ok(reader), Ok(writer)) = (reader, writer) {
            close(&reader, &writer);
        }
    });
}
