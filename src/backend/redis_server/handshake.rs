//! Reads a server's properties and checks that locks can be stored on it.

use std::collections::HashMap;
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use super::failure::unavailable;
use crate::backend::BackendError;

/// The properties that a server reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    /// The id of this run of the process.
    pub run_id: String,
    /// The replication id of its data, and the previous one.
    pub history: [String; 2],
    /// How long the process has run.
    pub uptime: Duration,
    /// Whether each write is on disk before its reply.
    pub durable: bool,
    /// The number of its replicas.
    pub replicas: u32,
    /// Its clock, in microseconds since 1970.
    pub time: Option<u64>,
    /// Why it takes nothing new: its memory is used up.
    pub no_memory: Option<String>,
    role: String,
    policy: String,
}

impl ServerInfo {
    /// Queries a server.
    ///
    /// # Errors
    /// Unavailable if its reply is missing or incomplete.
    pub async fn ask(connection: &mut MultiplexedConnection) -> Result<Self, BackendError> {
        let mut info = redis::cmd("INFO");
        info.arg(&["server", "memory", "persistence", "replication"]);
        let text: String = info.query_async(connection).await.map_err(unavailable)?;
        let append = append_policy(connection).await.map_err(unavailable)?;
        Self::read(&text, &append).ok_or_else(|| unavailable("INFO lacks run_id, uptime, role or maxmemory_policy"))
    }

    fn read(info: &str, append: &AppendPolicy) -> Option<Self> {
        let fields: HashMap<&str, &str> = info
            .lines()
            .filter_map(|line| line.trim_end().split_once(':'))
            .collect();
        let get = |name: &str| fields.get(name).map(ToString::to_string);
        // Computed from the server's wall clock: negative if the clock was set back to before the
        // start.
        let uptime: i64 = get("uptime_in_seconds")?.parse().ok()?;
        Some(Self {
            run_id: get("run_id")?,
            history: [get("master_replid")?, get("master_replid2")?],
            uptime: Duration::from_secs(uptime.try_into().unwrap_or(0)),
            durable: get("aof_enabled")? == "1" && append.is_durable(),
            replicas: get("connected_slaves")
                .and_then(|count| count.parse().ok())
                .unwrap_or(0),
            time: get("server_time_usec").and_then(|time| time.parse().ok()),
            no_memory: no_memory(|name| fields.get(name)?.parse().ok()),
            role: get("role")?,
            policy: get("maxmemory_policy")?,
        })
    }

    /// Whether locks may be stored on this server.
    ///
    /// # Errors
    /// Unavailable, with the reason.
    pub fn check(&self) -> Result<(), BackendError> {
        if self.role != "master" {
            return Err(unavailable(format!("the server is a {}, not a master", self.role)));
        }
        if self.policy != "noeviction" {
            let policy = &self.policy;
            return Err(unavailable(format!(
                "maxmemory-policy is {policy}: locks could be evicted; set it to noeviction"
            )));
        }
        Ok(())
    }
}

/// Why a server refuses what needs memory, by the figures that it reports and compares itself.
fn no_memory(figure: impl Fn(&str) -> Option<u64>) -> Option<String> {
    let most = figure("maxmemory").filter(|most| *most > 0)?;
    let uncounted = figure("mem_not_counted_for_evict").unwrap_or_default();
    let used = figure("used_memory")?.saturating_sub(uncounted);
    (used > most).then(|| format!("the server has no memory left (maxmemory is {most}): nothing is granted"))
}

/// Checks that messages can be published and received: waiters and watchers are notified by them.
///
/// # Errors
/// Unavailable, with the missing permission.
pub async fn check_pubsub(connection: &mut MultiplexedConnection, prefix: &str) -> Result<(), BackendError> {
    let channel = format!("{prefix}:handshake");
    let refused = |error| {
        unavailable(format!(
            "messages on the channels {prefix}:* cannot be published and received: {error}"
        ))
    };
    connection.subscribe(&channel).await.map_err(refused)?;
    let mut publish = redis::cmd("PUBLISH");
    publish.arg(&channel).arg("");
    publish.query_async::<u64>(connection).await.map_err(refused)?;
    connection.unsubscribe(&channel).await.map_err(refused)
}

/// The settings that decide when the append file is synced.
#[derive(Debug, Default)]
struct AppendPolicy(HashMap<String, String>);

impl AppendPolicy {
    /// Whether each write is synced before its reply, also during a rewrite of the file. An unknown
    /// setting counts as not synced.
    fn is_durable(&self) -> bool {
        let is = |setting: &str, value: &str| self.0.get(setting).is_some_and(|is| is == value);
        is("appendfsync", "always") && is("no-appendfsync-on-rewrite", "no")
    }
}

/// Reads the settings; empty if the user has no permission, so that writes count as not durable.
async fn append_policy(connection: &mut MultiplexedConnection) -> RedisResult<AppendPolicy> {
    let mut command = redis::cmd("CONFIG");
    // One pattern for both settings, because older servers accept only one.
    command.arg("GET").arg("*appendfsync*");
    let answer: RedisResult<HashMap<String, String>> = command.query_async(connection).await;
    match answer {
        Ok(found) => Ok(AppendPolicy(found)),
        Err(error) if error.is_io_error() => Err(error),
        Err(_) => Ok(AppendPolicy::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_info(role: &str, policy: &str, aof: u8, appendfsync: &str) -> ServerInfo {
        server_info_after(7, role, policy, aof, appendfsync)
    }

    fn server_info_after(uptime: i64, role: &str, policy: &str, aof: u8, appendfsync: &str) -> ServerInfo {
        let info = format!(
            "# Server\r\nrun_id:abc\r\nuptime_in_seconds:{uptime}\r\nrole:{role}\r\nmaxmemory_policy:{policy}\r\n\
             aof_enabled:{aof}\r\nmaster_replid:x\r\nmaster_replid2:0\r\n"
        );
        ServerInfo::read(
            &info,
            &policy_of(&[("appendfsync", appendfsync), ("no-appendfsync-on-rewrite", "no")]),
        )
        .unwrap()
    }

    fn policy_of(settings: &[(&str, &str)]) -> AppendPolicy {
        let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        AppendPolicy(settings.iter().map(owned).collect())
    }

    #[test]
    fn only_a_master_without_eviction_is_accepted() {
        assert!(server_info("master", "noeviction", 0, "").check().is_ok());
        assert!(server_info("slave", "noeviction", 0, "").check().is_err());
        let evicting = server_info("master", "allkeys-lru", 0, "").check().unwrap_err();
        assert!(evicting.to_string().contains("allkeys-lru"));
    }

    // G189
    #[test]
    fn a_server_without_memory_is_known_by_its_own_figures() {
        let no_memory = |used: u64, uncounted: u64, most: u64| {
            no_memory(|name| match name {
                "used_memory" => Some(used),
                "mem_not_counted_for_evict" => Some(uncounted),
                _ => Some(most),
            })
        };
        assert_eq!(no_memory(1000, 0, 0), None, "without a limit");
        assert_eq!(no_memory(1000, 1, 999), None);
        assert!(no_memory(1000, 0, 999).is_some_and(|reason| reason.contains("maxmemory is 999")));
    }

    #[test]
    fn a_negative_uptime_counts_as_zero() {
        assert_eq!(
            server_info_after(7, "master", "noeviction", 0, "").uptime,
            Duration::from_secs(7)
        );
        assert_eq!(
            server_info_after(-3_593, "master", "noeviction", 0, "").uptime,
            Duration::ZERO
        );
    }

    #[test]
    fn only_an_append_file_synced_with_each_write_is_durable() {
        assert!(server_info("master", "noeviction", 1, "always").durable);
        assert!(!server_info("master", "noeviction", 1, "everysec").durable);
        assert!(!server_info("master", "noeviction", 0, "always").durable);
        let always = ("appendfsync", "always");
        assert!(!policy_of(&[always, ("no-appendfsync-on-rewrite", "yes")]).is_durable());
        assert!(!policy_of(&[always]).is_durable());
    }
}
