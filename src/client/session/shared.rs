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
use crate::api::proto::lock_service_client::LockServiceClient;
use crate::client::connections::{CallChannel, Connections};
use crate::client::error::Failed;
use crate::clock;

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
    /// None is opened before this time.
    Closed(Duration),
    Opening,
    Open(Opened),
}

#[derive(Debug, Clone)]
struct Opened {
    session: Session,
    since: Duration,
    /// The number of its channel.
    channel: u64,
    /// The runtime of its task: another one may be driven while this one is not.
    runtime: runtime::Id,
}

impl Default for Link {
    fn default() -> Self {
        Self::Closed(Duration::ZERO)
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
struct Opening(Arc<SharedSession>);

impl Drop for Opening {
    fn drop(&mut self) {
        let mut link = self.0.link.lock();
        if let Link::Opening = *link {
            *link = Link::Closed(clock::since_boot() + REFUSED_PAUSE);
        }
    }
}

impl SharedSession {
    /// Counts a call that could be a command.
    pub fn begin_call(&self) -> CallInFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        CallInFlight(self)
    }

    /// The session over this channel for a call that has begun, if there is one. If there is none and other calls are in
    /// flight, opens one for calls that follow. Must be called within a tokio runtime.
    pub fn session(self: &Arc<Self>, connections: &Arc<Connections>, channel: &CallChannel) -> Option<Session> {
        let runtime = Handle::current().id();
        let now = clock::since_boot();
        let mut link = self.link.lock();
        if let Link::Open(opened) = &*link {
            if opened.runtime != runtime {
                return None;
            }
            if opened.channel == channel.number() && !opened.session.has_ended() {
                return Some(opened.session.clone());
            }
            let pause = match opened.channel == channel.number() && now < opened.since + SHORT {
                true => REFUSED_PAUSE,
                false => Duration::ZERO,
            };
            *link = Link::Closed(now + pause);
        }
        let others = self.in_flight.load(Ordering::Relaxed) > 1;
        if others && matches!(*link, Link::Closed(not_before) if not_before <= now) {
            *link = Link::Opening;
            let (opening, channel) = (Opening(Arc::clone(self)), channel.clone());
            tokio::spawn(open(opening, Arc::clone(connections), channel, runtime));
        }
        None
    }
}

async fn open(opening: Opening, connections: Arc<Connections>, channel: CallChannel, runtime: runtime::Id) {
    let opened = async {
        let (commands, messages) = Session::messages();
        let request = connections.request(messages).await?;
        let mut client = LockServiceClient::new(channel.channel.clone());
        Session::open(client.session(request), commands, Some(IDLE), &channel.address).await
    };
    let opened: Result<Result<Session, Failed>, _> = timeout(OPENING, opened).await;
    if let Ok(Ok(session)) = opened {
        let since = clock::since_boot();
        let opened = Opened {
            session,
            since,
            channel: channel.number(),
            runtime,
        };
        drop(replace(&mut *opening.0.link.lock(), Link::Open(opened)));
    }
}
