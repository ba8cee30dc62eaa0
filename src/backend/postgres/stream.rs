//! The bytes from a server, which are checked before the client of the protocol collects them: answers have a bound, and no
//! server is given the password in the clear.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::backend::login::Credentials;
use crate::backend::tls_stream::{Duplex, encrypt, is_secret};

/// What asks a server for TLS, before anything else is sent.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
/// The most bytes of one answer, with the notices within it: 64 roots of the largest size fit.
pub const MAX_ANSWER: usize = 64 * 1024 * 1024;
/// The most bytes of what a server tells before its first answer, and of the settings that it tells while a connection lives,
/// which the client keeps.
const MAX_SETTINGS: usize = 1024 * 1024;
/// The tags of messages: that an answer ends, a setting, and what the login needs.
const READY: u8 = b'Z';
const SETTING: u8 = b'S';
const LOGIN: u8 = b'R';
/// The logins that show the password: in the clear, or as an MD5 hash that is soon guessed.
const REVEALING: [u32; 2] = [3, 5];

/// Connects to a server, over TLS if the credentials have it.
///
/// # Errors
/// [`io::Error`] if it cannot be reached, or its certificate is not accepted.
pub async fn connect(server: &str, credentials: &Credentials) -> io::Result<Checked> {
    let mut stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = &credentials.tls else {
        let peer = stream.peer_addr()?.ip();
        return Ok(Checked::new(Box::new(stream), is_secret(peer)));
    };
    stream.write_all(&SSL_REQUEST).await?;
    match stream.read_u8().await? {
        b'S' => Ok(Checked::new(encrypt(stream, server, tls).await?, true)),
        _ => Err(io::Error::other("the server offers no TLS")),
    }
}

/// A connection to a server whose messages are checked.
pub struct Checked {
    stream: Box<dyn Duplex>,
    messages: Messages,
}

impl Checked {
    fn new(stream: Box<dyn Duplex>, may_show_password: bool) -> Self {
        let messages = Messages {
            may_show_password,
            ..Messages::default()
        };
        Self { stream, messages }
    }
}

/// What has come of the messages of a server.
#[derive(Default)]
struct Messages {
    may_show_password: bool,
    /// Whether the login has ended.
    is_ready: bool,
    /// What has come of the head of a message: its tag and its length, and in a login which one it is.
    head: Vec<u8>,
    /// How many bytes of the message are to come.
    left: usize,
    /// How many bytes the answer has by now, and all settings.
    answer: usize,
    settings: usize,
}

impl Messages {
    /// Notes what came.
    fn came(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.left > 0 {
                let body = self.left.min(bytes.len());
                self.left -= body;
                bytes = &bytes[body..];
                continue;
            }
            self.head.push(bytes[0]);
            bytes = &bytes[1..];
            if let Some((tag, length)) = self.message()? {
                self.begins(tag, length)?;
                self.head.clear();
            }
        }
        Ok(())
    }

    /// The tag of a message and its length without the tag, once its head is there.
    fn message(&self) -> io::Result<Option<(u8, usize)>> {
        let Some((tag, head)) = self.head.split_first() else {
            return Ok(None);
        };
        let Some((length, login)) = head.split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length < 4 {
            return Err(io::Error::other("the server sends a message without a length"));
        }
        if *tag != LOGIN || length < 8 {
            return Ok(Some((*tag, length)));
        }
        let Some(login) = login.first_chunk() else {
            return Ok(None);
        };
        if !self.may_show_password && REVEALING.contains(&u32::from_be_bytes(*login)) {
            return Err(io::Error::other(
                "the server asks for the password in the clear or as MD5, and the connection is not encrypted: set ca_file, or \
                 let the server use scram-sha-256",
            ));
        }
        Ok(Some((*tag, length)))
    }

    fn begins(&mut self, tag: u8, length: usize) -> io::Result<()> {
        self.left = (length + 1).saturating_sub(self.head.len());
        self.answer = self.answer.saturating_add(length);
        if tag == SETTING || !self.is_ready {
            self.settings = self.settings.saturating_add(length);
        }
        if self.answer > MAX_ANSWER || self.settings > MAX_SETTINGS {
            return Err(io::Error::other("the server sends more than an answer may have"));
        }
        if tag == READY {
            (self.is_ready, self.answer) = (true, 0);
        }
        Ok(())
    }
}

impl AsyncRead for Checked {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        Poll::Ready(self.messages.came(&buf.filled()[before..]))
    }
}

impl AsyncWrite for Checked {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32 + 4).to_be_bytes();
        [&[tag], length.as_slice(), body].concat()
    }

    /// What is wrong with these messages, whether they come at once or byte by byte.
    fn problem(may_show_password: bool, messages: &[Vec<u8>]) -> Option<String> {
        let all = messages.concat();
        let came = |size: usize| {
            let mut stream = Messages {
                may_show_password,
                ..Messages::default()
            };
            let came = all.chunks(size).try_for_each(|part| stream.came(part));
            came.err().map(|error| error.to_string())
        };
        let at_once = came(all.len());
        assert_eq!(came(1), at_once);
        assert_eq!(came(7), at_once);
        at_once
    }

    // G174
    #[test]
    fn a_server_that_asks_for_the_password_in_the_clear_is_refused_unless_nobody_else_reads_it() {
        for (login, shows) in [(0_u32, false), (3, true), (5, true), (10, false), (11, false)] {
            let ask = message(LOGIN, &[&login.to_be_bytes()[..], b"abcd"].concat());
            assert_eq!(problem(true, std::slice::from_ref(&ask)), None, "{login}");
            assert_eq!(problem(false, &[ask]).is_some(), shows, "{login}");
        }
        for (address, is_one) in [
            ("127.0.0.1", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("192.0.2.2", false),
        ] {
            assert_eq!(is_secret(address.parse().unwrap()), is_one, "{address}");
        }
    }

    // G174
    #[test]
    fn an_answer_has_a_bound_and_each_further_one_has_its_own() {
        let half = message(b'D', &vec![0; MAX_ANSWER / 2]);
        let is_ready = message(READY, b"I");
        let of = |messages: &[&Vec<u8>]| {
            let mut stream = Messages::default();
            messages.iter().try_for_each(|message| stream.came(message))
        };
        assert!(of(&[&is_ready, &half, &is_ready, &half, &is_ready, &half]).is_ok());
        assert!(of(&[&is_ready, &half, &half]).is_err());
        // A length counts before its bytes come, because the client makes room for all of them.
        assert!(of(&[&is_ready, &vec![b'D', 0x7f, 0xff, 0xff, 0xff]]).is_err());
        assert!(of(&[&vec![b'D', 0, 0, 0, 3]]).is_err());
        // Nothing large comes before the login has ended.
        assert!(of(&[&half]).is_err());
        // Settings are kept, however many answers come between.
        let setting = message(SETTING, &vec![b'x'; MAX_SETTINGS / 2]);
        assert!(of(&[&is_ready, &setting, &is_ready]).is_ok());
        assert!(of(&[&is_ready, &setting, &is_ready, &setting]).is_err());
    }
}
