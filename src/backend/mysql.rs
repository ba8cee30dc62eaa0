//! The MySQL store: the records of `crate::backend::sql` in a MariaDB or MySQL database.
//!
//! - [`statements`]: the tables, and each statement on them.
//! - [`client`]: the protocol of the servers.
//! - [`connection`]: the handshake with the primary, and scripts of statements.
//! - [`look`]: what a server and its tables must be.
//! - [`rows`]: the values of rows.
//! - [`session`]: the settings of a session.
//! - [`mod@queries`]: what the statements are given, and what they return.

use async_trait::async_trait;

use self::connection::Connection;
use super::sql::dialect::{Dialect, Session, Use};
use super::sql::error::SqlError;
pub use super::sql::settings;
use super::sql::settings::{Credentials, Settings};

mod client;
pub mod config;
mod connection;
mod look;
mod queries;
mod rows;
mod session;
mod statements;

/// An open store.
pub type Store = super::sql::Store<MySql>;

/// MariaDB or MySQL. Its sessions hear no messages, and all its commits wait for the disk.
#[derive(Debug)]
pub struct MySql;

#[async_trait]
impl Dialect for MySql {
    const KIND: &'static str = "mysql";
    const NAME: &'static str = "MySQL";
    type Connection = Connection;

    fn of(_: &Settings) -> Self {
        Self
    }

    fn has_soft(_: &Settings) -> bool {
        false
    }

    async fn open(
        &self,
        server: &str,
        settings: &Settings,
        credentials: &Credentials,
        usage: Use,
    ) -> Result<Session<Connection>, SqlError> {
        Connection::open(server, settings, credentials, usage).await
    }
}
