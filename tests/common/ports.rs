//! Ports for the servers that tests start.
//!
//! A server binds its port some time after a test has chosen it; a JVM after seconds. The system gives the ports above 32,767
//! to connections, so a port from there may be taken meanwhile by any client of another test. ZooKeeper ends if its port for
//! elections is.

use std::mem::forget;
use std::net::{TcpListener, UdpSocket};

/// A loopback port that nobody listens on, and that no test is given again.
pub fn free_port() -> u16 {
    free_with(&[])
}

/// The same, with further ones at these distances.
pub fn free_with(distances: &[u16]) -> u16 {
    loop {
        let random = getrandom::u32().expect("the system has random numbers");
        let port = 10_000 + (random % 12_000) as u16;
        let ports = distances.iter().map(|distance| port + distance);
        let taken: Option<Vec<_>> = [port].into_iter().chain(ports).map(take).collect();
        if let Some(taken) = taken {
            forget(taken);
            return port;
        }
    }
}

/// Takes a port, if it is free. No server uses UDP, so a socket there says until this process ends that it is taken.
fn take(port: u16) -> Option<UdpSocket> {
    let address = ("127.0.0.1", port);
    let mark = UdpSocket::bind(address).ok()?;
    TcpListener::bind(address).is_ok().then_some(mark)
}
