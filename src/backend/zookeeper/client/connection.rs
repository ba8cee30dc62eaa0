//! One connection to a server: the handshake, and then requests and answers in their order.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, interval};

use super::Request;
use super::stream::connect;
use super::wire::{Code, Reader, Writer, opcode};
use crate::backend::tls_stream::Duplex;
use crate::backend::tree::store::{Event, EventKind, Failure};
use crate::backend::zookeeper::settings::{Credentials, Login, Settings};

/// The numbers of messages that do not answer a request in its order.
mod xid {
    pub const EVENT: i32 = -1;
    pub const PING: i32 = -2;
    pub const AUTH: i32 = -4;
}

/// The largest answer, in bytes.
const MAX_ANSWER: usize = 64 * 1024 * 1024;
/// How many requests are taken at once.
const REQUESTS: usize = 256;
/// Past so many unsent bytes no more requests are taken.
const UNSENT: usize = 4 * 1024 * 1024;

/// The session that a connection continues; the default begins a new one.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    pub session: i64,
    pub password: Vec<u8>,
    /// The newest change that was seen. A server that lags behind it refuses the connection.
    pub zxid: i64,
}

/// Why a connection ended.
#[derive(Debug)]
pub enum Ended {
    /// The session was closed, or the client dropped.
    Closed,
    Broken(String),
}

/// See the module.
pub struct Connection {
    read: ReadHalf<Box<dyn Duplex>>,
    write: WriteHalf<Box<dyn Duplex>>,
    inbox: BytesMut,
    outbox: BytesMut,
    pending: VecDeque<Pending>,
    last_xid: i32,
    zxid: i64,
    heard: Instant,
    /// When the last request was answered: those behind it wait for a busy server, and not for a dead one.
    answered: Instant,
    sent: Instant,
    session_timeout: Duration,
    request_timeout: Duration,
}

struct Pending {
    xid: i32,
    sent: Instant,
    is_close: bool,
    answer: oneshot::Sender<Result<Vec<u8>, Failure>>,
}

impl Connection {
    /// Connects, and continues the session or begins a new one.
    ///
    /// # Errors
    /// Why not.
    pub async fn open(
        settings: &Settings,
        credentials: &Credentials,
        server: &str,
        identity: &mut Identity,
    ) -> Result<Self, String> {
        let at = |what: &str| format!("{server}: {what}");
        let stream = connect(server, credentials.tls.as_ref()).await;
        let (read, write) = split(stream.map_err(|error| at(&error.to_string()))?);
        let mut connection = Self {
            read,
            write,
            inbox: BytesMut::new(),
            outbox: BytesMut::new(),
            pending: VecDeque::new(),
            last_xid: 0,
            zxid: identity.zxid,
            heard: Instant::now(),
            answered: Instant::now(),
            sent: Instant::now(),
            session_timeout: settings.session_timeout,
            request_timeout: settings.timeout,
        };
        connection.begin(settings, identity).await.map_err(|why| at(&why))?;
        if let Some(login) = &credentials.login {
            connection.authenticate(login).await.map_err(|why| at(&why))?;
        }
        Ok(connection)
    }

    async fn begin(&mut self, settings: &Settings, identity: &mut Identity) -> Result<(), String> {
        let asked = i32::try_from(settings.session_timeout.as_millis()).unwrap_or(i32::MAX);
        let mut request = Writer::default();
        request.int(0).long(identity.zxid).int(asked).long(identity.session);
        // A read-only server could not answer for anything.
        request.buffer(&identity.password).bool(false);
        self.enqueue(&request.0);
        self.flush().await?;
        let answer = self.next_frame().await?;
        let mut reader = Reader(&answer);
        let read = (|| {
            reader.int()?;
            let (timeout, session) = (reader.int()?, reader.long()?);
            Ok::<_, Failure>((timeout, session, reader.buffer()?.to_vec()))
        })();
        let (timeout, session, password) = read.map_err(|failure| failure.to_string())?;
        if timeout <= 0 {
            *identity = Identity::default();
            return Err("the session has expired".into());
        }
        self.session_timeout = Duration::from_millis(timeout.unsigned_abs().into());
        *identity = Identity {
            session,
            password,
            zxid: identity.zxid,
        };
        Ok(())
    }

    async fn authenticate(&mut self, login: &Login) -> Result<(), String> {
        let mut request = Writer::default();
        request.int(xid::AUTH).int(opcode::AUTH).int(0).string("digest");
        request.buffer(format!("{}:{}", login.user, login.password).as_bytes());
        self.enqueue(&request.0);
        self.flush().await?;
        loop {
            let frame = self.next_frame().await?;
            let header = Header::read(&frame).map_err(|failure| failure.to_string())?.0;
            match header.xid {
                xid::AUTH if header.code == Code::OK => return Ok(()),
                xid::AUTH => return Err(header.code.meaning().into()),
                _ => {}
            }
        }
    }

    /// The newest change that an answer has shown.
    pub fn zxid(&self) -> i64 {
        self.zxid
    }

    /// The time of silence after which the servers end the session.
    pub fn session_timeout(&self) -> Duration {
        self.session_timeout
    }

    /// When the server was last heard from.
    pub fn heard(&self) -> Instant {
        self.heard
    }

    /// Fails the requests without an answer.
    pub fn fail_pending(&mut self, ended: &Ended) {
        let why = match ended {
            Ended::Closed => "the session was closed",
            Ended::Broken(why) => why,
        };
        for pending in self.pending.drain(..) {
            let _ = pending.answer.send(Err(Failure::Unavailable(why.to_owned())));
        }
    }

    /// Sends requests and receives answers until the connection ends.
    pub async fn run(
        &mut self,
        generation: u64,
        requests: &mut mpsc::UnboundedReceiver<Request>,
        events: &mpsc::UnboundedSender<Event>,
    ) -> Ended {
        let mut ticks = interval((self.session_timeout.min(self.request_timeout) / 8).max(Duration::from_millis(10)));
        let mut taken = Vec::with_capacity(REQUESTS);
        loop {
            let end = tokio::select! {
                received = self.read.read_buf(&mut self.inbox) => match received {
                    Ok(0) => Some(Ended::Broken("the server closed the connection".into())),
                    Ok(_) => self.receive(events),
                    Err(error) => Some(Ended::Broken(error.to_string())),
                },
                written = self.write.write_buf(&mut self.outbox), if !self.outbox.is_empty() => {
                    written.err().map(|error| Ended::Broken(error.to_string()))
                }
                count = requests.recv_many(&mut taken, REQUESTS), if self.outbox.len() < UNSENT => {
                    for request in taken.drain(..) {
                        self.request(request, generation);
                    }
                    (count == 0).then_some(Ended::Closed)
                }
                _ = ticks.tick() => self.check().map(Ended::Broken),
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    fn request(&mut self, request: Request, generation: u64) {
        // The end of the session is meant for whichever connection it has.
        if request.generation != generation && request.code != opcode::CLOSE {
            let gone = Failure::NotSent("its connection was replaced".into());
            let _ = request.answer.send(Err(gone));
            return;
        }
        self.last_xid = self.last_xid.checked_add(1).unwrap_or(1);
        let mut header = Writer::default();
        header.int(self.last_xid).int(request.code);
        let length = header.0.len() + request.body.len();
        self.outbox
            .extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        self.outbox.extend_from_slice(&header.0);
        self.outbox.extend_from_slice(&request.body);
        self.sent = Instant::now();
        self.pending.push_back(Pending {
            xid: self.last_xid,
            sent: self.sent,
            is_close: request.code == opcode::CLOSE,
            answer: request.answer,
        });
    }

    /// Pings a silent server, and gives up one that does not answer.
    fn check(&mut self) -> Option<String> {
        let late = |pending: &Pending| pending.sent.max(self.answered).elapsed() > self.request_timeout;
        if self.pending.front().is_some_and(late) || self.heard.elapsed() > self.session_timeout * 2 / 3 {
            return Some("the server does not answer".into());
        }
        if self.sent.elapsed() > self.session_timeout / 4 {
            let mut ping = Writer::default();
            ping.int(xid::PING).int(opcode::PING);
            self.enqueue(&ping.0);
            self.sent = Instant::now();
        }
        None
    }

    /// Handles the frames that have arrived.
    fn receive(&mut self, events: &mpsc::UnboundedSender<Event>) -> Option<Ended> {
        loop {
            match self.split_frame() {
                Ok(Some(frame)) => match self.answer(&frame, events) {
                    Ok(false) => {}
                    Ok(true) => return Some(Ended::Closed),
                    Err(failure) => return Some(Ended::Broken(failure.to_string())),
                },
                Ok(None) => return None,
                Err(why) => return Some(Ended::Broken(why)),
            }
        }
    }

    /// Handles one frame. True if it answers the close of the session.
    fn answer(&mut self, frame: &[u8], events: &mpsc::UnboundedSender<Event>) -> Result<bool, Failure> {
        self.heard = Instant::now();
        let (header, body) = Header::read(frame)?;
        match header.xid {
            xid::PING | xid::AUTH => return Ok(false),
            xid::EVENT => {
                if let Some(event) = read_event(body)? {
                    let _ = events.send(event);
                }
                return Ok(false);
            }
            _ => {}
        }
        self.zxid = self.zxid.max(header.zxid);
        let pending = self.pending.pop_front().filter(|pending| pending.xid == header.xid);
        let pending = pending.ok_or_else(|| Failure::Damaged("an answer is not in order".into()))?;
        self.answered = self.heard;
        let answer = match header.code {
            Code::OK => Ok(body.to_vec()),
            code => Err(code.failure()),
        };
        let _ = pending.answer.send(answer);
        Ok(pending.is_close)
    }

    fn enqueue(&mut self, message: &[u8]) {
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
        self.outbox.extend_from_slice(&length.to_be_bytes());
        self.outbox.extend_from_slice(message);
    }

    async fn flush(&mut self) -> Result<(), String> {
        let written = self.write.write_all_buf(&mut self.outbox).await;
        written.map_err(|error| error.to_string())
    }

    async fn next_frame(&mut self) -> Result<Vec<u8>, String> {
        loop {
            if let Some(frame) = self.split_frame()? {
                return Ok(frame);
            }
            match self.read.read_buf(&mut self.inbox).await {
                Ok(0) => return Err("the server refused the connection".into()),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn split_frame(&mut self) -> Result<Option<Vec<u8>>, String> {
        let Some(length) = self.inbox.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_ANSWER {
            return Err("an answer is too large".into());
        }
        if self.inbox.len() < 4 + length {
            return Ok(None);
        }
        self.inbox.advance(4);
        Ok(Some(self.inbox.split_to(length).to_vec()))
    }
}

/// The header of an answer.
struct Header {
    xid: i32,
    zxid: i64,
    code: Code,
}

impl Header {
    fn read(frame: &[u8]) -> Result<(Self, &[u8]), Failure> {
        let mut reader = Reader(frame);
        let header = Self {
            xid: reader.int()?,
            zxid: reader.long()?,
            code: Code(reader.int()?),
        };
        Ok((header, reader.0))
    }
}

fn read_event(body: &[u8]) -> Result<Option<Event>, Failure> {
    let mut reader = Reader(body);
    let kind = match reader.int()? {
        1 => EventKind::Created,
        2 => EventKind::Deleted,
        3 => EventKind::Changed,
        _ => return Ok(None),
    };
    reader.int()?;
    let path = reader.string()?.to_owned();
    Ok(Some(Event { kind, path }))
}
