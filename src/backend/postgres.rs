//! The PostgreSQL store: the records of `crate::backend::sql` in a PostgreSQL database.
//!
//! - [`statements`]: the tables, and each statement on them.
//! - [`connection`]: TLS, the login and the handshake with the primary.
//! - [`mod@queries`]: what the statements are given, and what they return.
//! - [`stream`]: the bytes from a server, which have bounds.
//! - [`commits`]: commits that are proved, and [`look`] what that rests on.
//! - [`sync_wait`]: a commit that is seen to wait for standbys.
//! - [`standbys`]: which standbys must have it.
//! - [`messages`]: LISTEN and NOTIFY.
//! - [`notices`]: warnings in the log.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt, pending};
use tokio::time::timeout;

use self::connection::Connection;
use self::messages::Inboxes;
use self::notices::Notices;
use self::statements::Texts;
use super::record::store::{Heard, ServerId};
use super::sql::dialect::{Dialect, Session, Use};
use super::sql::error::SqlError;
pub use super::sql::settings;
use super::sql::settings::{Credentials, Settings};

mod commits;
pub mod config;
mod connection;
mod look;
mod messages;
mod notices;
mod queries;
mod standbys;
mod statements;
mod stream;
mod sync_wait;

/// An open store.
pub type Store = super::sql::Store<Postgres>;

/// What all connections share.
#[derive(Debug)]
pub struct Postgres {
    texts: Texts,
    /// The messages to the servers in this process; none behind a pooler.
    inboxes: Arc<Inboxes>,
    notices: Arc<Notices>,
    has_messages: bool,
    /// Whether the log says that the database has tables of others.
    is_shared: AtomicBool,
}

#[async_trait]
impl Dialect for Postgres {
    const KIND: &'static str = "postgres";
    const NAME: &'static str = "PostgreSQL";
    type Connection = Connection;

    fn of(settings: &Settings) -> Self {
        Self {
            texts: Texts::of(
                &settings.schema,
                settings.pooler.then(|| connection::lock_timeout(settings)),
            ),
            inboxes: Arc::default(),
            notices: Arc::default(),
            has_messages: Self::has_soft(settings),
            is_shared: AtomicBool::new(false),
        }
    }

    fn has_soft(settings: &Settings) -> bool {
        !settings.pooler
    }

    async fn open(
        &self,
        server: &str,
        settings: &Settings,
        credentials: &Credentials,
        usage: Use,
    ) -> Result<Session<Connection>, SqlError> {
        Connection::open(self, server, settings, credentials, usage).await
    }

    fn messages(&self, server: ServerId) -> BoxStream<'static, Heard> {
        match self.has_messages {
            true => self.inboxes.add(server).open(),
            false => pending().boxed(),
        }
    }

    fn forget(&self, server: ServerId) {
        self.inboxes.remove(server);
    }

    async fn listen(&self, connection: &Connection, settings: &Settings) -> String {
        let mut is_new_connection = true;
        loop {
            if self.has_messages {
                let listened = timeout(settings.timeout, connection.batch(&self.inboxes.listen())).await;
                if !matches!(listened, Ok(Ok(()))) {
                    return "PostgreSQL does not accept LISTEN".into();
                }
                self.inboxes.listened(is_new_connection);
                is_new_connection = false;
            }
            tokio::select! {
                () = connection.closed.cancelled() => return "the connection to PostgreSQL was lost".into(),
                () = self.inboxes.added.notified() => {}
            }
        }
    }
}
