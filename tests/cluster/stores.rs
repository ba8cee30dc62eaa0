//! The stores that servers share, each with the configuration of a namespace on it. A test without the store passes.

/// Runs a test on Redis.
#[cfg(feature = "redis")]
pub async fn on_redis(test: impl AsyncFnOnce(&str)) {
    use crate::redis_servers::{RedisServer, available};
    if available() {
        let server = RedisServer::start(&[]);
        let (backend, url) = ("backend = 'redis'", server.url());
        test(&format!(
            "{backend}\nredis.urls = ['{url}']\nredis.on_empty_store = 'admit'"
        ))
        .await;
    }
}

/// Runs a test on etcd.
#[cfg(feature = "etcd")]
pub async fn on_etcd(test: impl AsyncFnOnce(&str)) {
    use crate::etcd_servers::{Cluster, available};
    if available() {
        let cluster = Cluster::start(1);
        test(&format!("backend = 'etcd'\netcd.endpoints = {:?}", cluster.urls())).await;
    }
}

/// Runs a test on PostgreSQL.
#[cfg(feature = "postgres")]
pub async fn on_postgres(test: impl AsyncFnOnce(&str)) {
    use crate::postgres_servers::{Postgres, available};
    if available() {
        let server = Postgres::started(&[]);
        test(&format!(
            "backend = 'postgres'\npostgres.servers = ['{}']",
            server.address()
        ))
        .await;
    }
}

/// Runs a test on MariaDB.
#[cfg(feature = "mysql")]
pub async fn on_mysql(test: impl AsyncFnOnce(&str)) {
    use crate::mysql_servers::{MariaDb, available};
    if available() {
        let server = MariaDb::started(&[]);
        test(&format!("backend = 'mysql'\nmysql.servers = ['{}']", server.address())).await;
    }
}
