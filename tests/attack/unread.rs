//! A client that asks for refusals, which are answers of headers alone, and never reads its socket. No window of
//! HTTP/2 holds headers back.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::fixture::{Client, bearers, runtime, start, work};
use super::server::{Server, resident};

/// For how long the client asks at most, less than it takes until the connection is closed because it stands still.
const ASKING: Duration = Duration::from_secs(12);
const WORK: Duration = Duration::from_secs(2);
/// The length of a request's id in bytes, the longest that the server accepts.
const ID: usize = 128;
/// How many requests it sends on a connection at most.
const REQUESTS: u32 = 80_000;
const MIB: u64 = 1 << 20;
/// How many bytes of answers may be unsent in all, and how much the memory of the server may grow.
const UNSENT: u64 = 4 * MIB;
const MAY_GROW: u64 = 24 * MIB;

/// A call of a method without a token and without a message, as a frame of HTTP/2.
fn call(number: u32) -> Vec<u8> {
    let path = b"/fencepost.v1.LockService/GetLock";
    // POST over http, of the static table; then a path, and a content type.
    let mut headers = vec![0x83, 0x86, 0x04, u8::try_from(path.len()).expect("short")];
    headers.extend(path);
    headers.extend([0x0f, 0x10, 16]);
    headers.extend(b"application/grpc");
    // An id that the refusal repeats. The code of HTTP/2 for this character is long, so the refusals are longer than what the sockets accept.
    let name = b"x-request-id";
    let id = format!("{number:@>ID$}");
    headers.extend([0, u8::try_from(name.len()).expect("short")]);
    headers.extend(name);
    // A length of 128 does not fit into the seven bits.
    headers.extend([127, 1]);
    headers.extend(id.as_bytes());
    let length = u16::try_from(headers.len()).expect("short").to_be_bytes();
    // HEADERS, with the ends of the headers and of the stream.
    let mut frame = vec![0, length[0], length[1], 1, 5];
    frame.extend((2 * number + 1).to_be_bytes());
    frame.extend(headers);
    frame
}

/// Asks for refusals until the server closes the connection, or for [`ASKING`]. Answers the socket, which stays open.
async fn ask_for_refusals(server: &Server) -> (TcpStream, u32) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let mut socket = socket
        .connect(server.address.parse().expect("an address"))
        .await
        .expect("the server accepts");
    socket
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .expect("sent");
    let mut sent = 0;
    let asking = async {
        while sent < REQUESTS {
            let some: Vec<u8> = (sent..sent + 100).flat_map(call).collect();
            if socket.write_all(&some).await.is_err() {
                return;
            }
            sent += 100;
        }
    };
    timeout(ASKING, asking).await.expect("the connection is closed");
    (socket, sent)
}

#[test]
fn refusals_that_nobody_reads_take_little_memory_and_hold_nobody_up() {
    let _alone = super::alone();
    let home = tempfile::tempdir().expect("a directory");
    let server = start(
        &home,
        &format!("[server]\nunsent_bytes_limit = {UNSENT}\n{}", bearers(&["normal"])),
    );
    runtime().block_on(async {
        let normal = Client::connect(&server.address, Some("normal")).await;
        work(&normal, WORK / 4).await.well();
        let before = resident(server.id());
        let ((_open, sent), fared) = tokio::join!(ask_for_refusals(&server), work(&normal, WORK));
        let grown = resident(server.id()).saturating_sub(before);
        println!("{sent} refusals asked for, the server grew by {} MiB", grown / MIB);
        fared.well();
        assert!(sent > 10_000, "{sent} were asked for");
        assert!(sent < REQUESTS, "the server closes the connection");
        assert!(grown < MAY_GROW, "{grown}");
    });
}
