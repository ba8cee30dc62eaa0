//! Finds the local process that serves an address.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::path::Path;

use fencepost::api::ListenAddress;
use fencepost_client::Address;
use tokio::net::UnixStream;

/// The state of a listening socket in /proc/net/tcp.
const LISTENING: &str = "0A";

/// The id of the process that serves an address, if it runs on this machine and is visible to this
/// user.
pub async fn process_of(address: &Address) -> Option<u32> {
    match &address.at {
        ListenAddress::Unix(path) => of_unix(path).await,
        ListenAddress::Tcp { host, port } => of_tcp(host, *port),
    }
}

async fn of_unix(path: &Path) -> Option<u32> {
    let peer = UnixStream::connect(path).await.ok()?.peer_cred().ok()?;
    u32::try_from(peer.pid()?).ok()
}

fn of_tcp(host: &str, port: u16) -> Option<u32> {
    let stream = TcpStream::connect((host, port)).ok()?;
    // A connection within this machine has the same address at both ends.
    if stream.local_addr().ok()?.ip() != stream.peer_addr().ok()?.ip() {
        return None;
    }
    let sockets: BTreeSet<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .flat_map(|table| listening(&fs::read_to_string(table).unwrap_or_default(), port))
        .collect();
    let mut owners = processes().filter(|process| owns(*process, &sockets));
    // If several processes share the port, the one under load is unknown.
    owners.next().filter(|_| owners.next().is_none())
}

/// The sockets that listen on a port, in the form of links in /proc/<pid>/fd.
fn listening(table: &str, port: u16) -> Vec<String> {
    let port = format!(":{port:04X}");
    let rows = table
        .lines()
        .skip(1)
        .map(|row| row.split_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|row| {
        let local = row.get(1).is_some_and(|local| local.ends_with(&port));
        local && row.get(3) == Some(&LISTENING)
    });
    ours.filter_map(|row| Some(format!("socket:[{}]", row.get(9)?)))
        .collect()
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn owns(process: u32, sockets: &BTreeSet<String>) -> bool {
    let files = fs::read_dir(format!("/proc/{process}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
    links.any(|link| link.to_str().is_some_and(|link| sockets.contains(link)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn this_process_is_found_by_its_port() {
        let own = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = own.local_addr().expect("its address").to_string();
        let found = process_of(&address.parse().expect("an address")).await;
        assert_eq!(found, Some(std::process::id()));
        drop(own);
        assert_eq!(process_of(&address.parse().expect("an address")).await, None);
    }
}
