//! The session that the calls of a client share.
//!
//! A lone call is sent as a call of its own. The first call that is made while another one is in flight opens a session,
//! and those that follow are its commands. It ends when it has been idle for a while.

use std::mem::replace;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{self, Handle};
use tokio::time::timeout;

use super::Session;
use crate::clock;
use crate::connections::{CallChannel, Connections};
use crate::credentials::{AUTHORIZATION, BearerToken};
use crate::error::Failed;
use crate::proto::lock_service_client::LockServiceClient;

/// How long a server may take to open a session.
const OPENING: Duration = Duration::from_secs(5);
/// How long a session is kept without a command in flight.
const IDLE: Duration = Duration::from_secs(10);
/// A session that was refused, or that ended so soon, is not opened again for [`REFUSED_PAUSE`].
const SHORT: Duration = Duration::from_secs(2);
/// The pause after a server that refuses sessions, for example because it does not offer them.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug, Default)]
pub struct SharedSession {
    /// Calls that could be commands.
    in_flight: AtomicUsize,
    /// Locked only to read or replace the value.
    link: Mutex<Link>,
}

#[derive(Debug, Clone)]
enum Link {
    /// None is opened over this channel before this time.
    Closed {
        channel: u64,
        not_before: Duration,
    },
    Opening,
    Open(Opened),
}

#[derive(Debug, Clone)]
struct Opened {
    session: Session,
    since: Duration,
    /// The number of its channel.
    channel: u64,
    /// The bearer token that it was opened with. It takes no call with another one.
    token: Option<BearerToken>,
    /// The runtime of its task: another one may be driven while this one is not.
    runtime: runtime::Id,
}

impl Default for Link {
    fn default() -> Self {
        Self::Closed {
            channel: 0,
            not_before: Duration::ZERO,
        }
    }
}

/// A call in flight, until this is dropped.
pub struct CallInFlight<'a>(&'a SharedSession);

impl Drop for CallInFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Closes the link, unless a session was opened.
struct Opening {
    shared: Arc<SharedSession>,
    channel: u64,
}

impl Drop for Opening {
    fn drop(&mut self) {
        let mut link = self.shared.link.lock();
        if let Link::Opening = *link {
            *link = Link::Closed {
                channel: self.channel,
                not_before: clock::since_boot() + REFUSED_PAUSE,
            };
        }
    }
}

impl SharedSession {
    /// Counts a call that could be a command.
    pub fn begin_call(&self) -> CallInFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        CallInFlight(self)
    }

    /// The session over this channel for a call that has begun and presents this token, if there is one. If there is none
    /// and other calls are in flight, opens one for calls that follow. Must be called within a tokio runtime.
    pub fn session(
        self: &Arc<Self>,
        connections: &Arc<Connections>,
        channel: &CallChannel,
        token: Option<&BearerToken>,
    ) -> Option<Session> {
        let (runtime, number) = (Handle::current().id(), channel.number());
        let now = clock::since_boot();
        let mut link = self.link.lock();
        if let Link::Open(opened) = &*link {
            let has_ended = opened.session.has_ended();
            if opened.channel == number && opened.token.as_ref() == token && !has_ended {
                return (opened.runtime == runtime).then(|| opened.session.clone());
            }
            let pause = match has_ended && now < opened.since + SHORT {
                true => REFUSED_PAUSE,
                false => Duration::ZERO,
            };
            *link = Link::Closed {
                channel: opened.channel,
                not_before: now + pause,
            };
        }
        let may_open = match *link {
            Link::Closed { channel, not_before } => not_before <= now || channel != number,
            Link::Opening | Link::Open(_) => false,
        };
        if may_open && self.in_flight.load(Ordering::Relaxed) > 1 {
            *link = Link::Opening;
            // A task that is dropped at once locks it.
            drop(link);
            let opening = Opening {
                shared: Arc::clone(self),
                channel: number,
            };
            tokio::spawn(open(opening, Arc::clone(connections), channel.clone(), runtime));
        }
        None
    }
}

async fn open(opening: Opening, connections: Arc<Connections>, channel: CallChannel, runtime: runtime::Id) {
    let opened = async {
        let (commands, messages) = Session::messages();
        let request = connections.request(messages).await?;
        let token = request.metadata().get(AUTHORIZATION).cloned();
        let mut client = LockServiceClient::new(channel.channel.clone());
        let session = Session::open(client.session(request), commands, Some(IDLE), &channel.address).await?;
        Ok((session, token))
    };
    let opened: Result<Result<_, Failed>, _> = timeout(OPENING, opened).await;
    if let Ok(Ok((session, token))) = opened {
        let since = clock::since_boot();
        let opened = Opened {
            session,
            since,
            channel: channel.number(),
            token,
            runtime,
        };
        drop(replace(&mut *opening.shared.link.lock(), Link::Open(opened)));
    }
}
