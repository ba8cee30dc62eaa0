//! A Cluster: one monitored connection per master, and a slot map of its own.
//!
//! The map follows the servers' redirections at once (MOVED, and ASK with ASKING), and is read
//! again from a live node every second. A call follows at most 8 redirections; a
//! redirected call had no effect on the server that redirected it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use parking_lot::Mutex;
use redis::{Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::connection::connect;
use super::credentials::located;
use super::failure::{not_sent, of_script, unavailable};
use super::library::Scripts;
use super::marker::Marker;
use super::node::Node;
use super::script::{Answer, Script, ScriptCall, StepRequirements};
use super::sentinel::Finder;
use super::settings::Settings;
use super::slotless_masters::slotless_masters;
use super::slots::SLOTS;
pub use super::slots::slot;
use crate::backend::{BackendError, Health};
use crate::supervisor::supervise;

/// The maximum number of redirections of a call.
const REDIRECTS: usize = 8;
/// How often the map is read again.
const REFRESH: Duration = Duration::from_secs(1);
/// How long a call waits for the first handshake with a node to which it was redirected.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(1);

/// The masters of a Cluster.
pub struct Cluster {
    settings: Arc<Settings>,
    seeds: Vec<ConnectionInfo>,
    scripts: Scripts,
    map: Mutex<SlotMap>,
    stale: Notify,
    health: watch::Sender<Health>,
}

type Address = (String, u16);

#[derive(Default)]
struct SlotMap {
    nodes: HashMap<Address, Arc<Node>>,
    ranges: Ranges,
    /// The redirections since the map was read.
    moved: HashMap<u16, Address>,
    /// The targets of redirections since then, including a future master that serves no range yet.
    redirected_to: HashSet<Address>,
    /// The masters that serve no slot yet.
    empty: HashSet<Address>,
}

/// Each range of slots and its master, keyed by the last slot of the range.
type Ranges = BTreeMap<u16, (u16, Address)>;

impl Cluster {
    /// Starts to monitor the Cluster to which the seeds belong.
    pub fn start(settings: Arc<Settings>, seeds: Vec<ConnectionInfo>, scripts: Scripts) -> Arc<Self> {
        let (health, _) = watch::channel(Health::unavailable("not connected yet"));
        let cluster = Arc::new(Self {
            settings,
            seeds,
            scripts,
            map: Mutex::default(),
            stale: Notify::new(),
            health,
        });
        supervise("redis: cluster", Arc::downgrade(&cluster), |cluster| {
            follow(Weak::clone(cluster)).boxed()
        });
        cluster
    }

    /// The health of the Cluster: unavailable as soon as one of its masters is.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// All masters, or the one at `host:port`.
    pub fn nodes(&self, only: Option<&str>) -> Vec<Arc<Node>> {
        let map = self.map.lock();
        let wanted = |at: &Address| match only {
            Some(only) => only == format!("{}:{}", at.0, at.1),
            // A master without slots may be unreachable: it is not needed.
            None => !map.empty.contains(at),
        };
        map.nodes
            .iter()
            .filter(|(at, _)| wanted(at))
            .map(|(_, node)| Arc::clone(node))
            .collect()
    }

    /// Any usable master.
    ///
    /// # Errors
    /// NotSent while there is none.
    pub fn any(&self) -> Result<Arc<Node>, BackendError> {
        let live = self.all().into_iter().find(|node| node.live().is_ok());
        live.ok_or_else(|| not_sent("no node of the cluster can be reached"))
    }

    /// Whether this is the address of a master that serves slots.
    pub fn has_master_at(&self, info: &ConnectionInfo) -> bool {
        let masters = self.map.lock().masters();
        masters
            .iter()
            .any(|node| node.live().is_ok_and(|live| live.info.addr() == info.addr()))
    }

    /// All known nodes; those that serve slots come first.
    fn all(&self) -> Vec<Arc<Node>> {
        let map = self.map.lock();
        let mut nodes = map.masters();
        let others = map
            .nodes
            .values()
            .filter(|node| !nodes.iter().any(|one| Arc::ptr_eq(one, node)));
        let others: Vec<_> = others.map(Arc::clone).collect();
        nodes.extend(others);
        nodes
    }

    /// Calls a script on the master of its key's slot.
    ///
    /// # Errors
    /// Unavailable and Quarantined; Broken when the script itself failed.
    pub async fn call(
        &self,
        script: &'static Script,
        key: &[u8],
        args: &[Vec<u8>],
        needs: StepRequirements,
    ) -> Result<Answer, BackendError> {
        let mut route = self.route(slot(key))?;
        for _ in 0..REDIRECTS {
            route.node.check(needs)?;
            let call = ScriptCall {
                asking: route.asking,
                ..ScriptCall::of(key, args)
            };
            match route.node.call(script, &call, needs).await? {
                Ok(answer) => return Ok(answer),
                Err(error) => route = self.redirect(route, slot(key), &error).await?,
            }
        }
        // A redirected call had no effect.
        Err(not_sent("redirected too often"))
    }

    /// Sends a command to the master of its key's slot.
    ///
    /// # Errors
    /// Like [`Self::call`]. A migrating slot is Unavailable.
    pub async fn command(&self, key: &[u8], command: &Cmd) -> Result<Value, BackendError> {
        let mut route = self.route(slot(key))?;
        for _ in 0..REDIRECTS {
            if route.asking {
                return Err(unavailable("the slot is migrating"));
            }
            match route.node.command(command).await? {
                Ok(answer) => return Ok(answer),
                Err(error) => route = self.redirect(route, slot(key), &error).await?,
            }
        }
        Err(unavailable("redirected too often"))
    }

    fn route(&self, slot: u16) -> Result<Route, BackendError> {
        let node = self.map.lock().master(slot);
        let node = node.ok_or_else(|| {
            self.stale.notify_one();
            not_sent(format!("no node is known to serve slot {slot}"))
        })?;
        Ok(Route { node, asking: false })
    }

    async fn redirect(&self, route: Route, slot: u16, error: &RedisError) -> Result<Route, BackendError> {
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask) => {}
            ErrorKind::Server(ServerErrorKind::TryAgain) => {
                sleep(Duration::from_millis(20)).await;
                return Ok(route);
            }
            _ => {
                self.stale.notify_one();
                return Err(of_script(error));
            }
        }
        let asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
        let to = error.redirect_node().and_then(|(to, _)| address(to));
        let to = to.ok_or_else(|| of_script(error))?;
        let node = self.connect_to(to.clone()).await;
        if !asking {
            self.map.lock().moved.insert(slot, to);
            self.stale.notify_one();
        }
        Ok(Route { node, asking })
    }

    /// The node at an address, known or new.
    async fn connect_to(&self, at: Address) -> Arc<Node> {
        let node = {
            let mut map = self.map.lock();
            map.redirected_to.insert(at.clone());
            self.node(&mut map, at)
        };
        // If it does not connect in time, the call itself fails with the reason.
        let _ = timeout(HANDSHAKE_WAIT, node.until(|live| live.is_some())).await;
        node
    }

    fn node(&self, map: &mut SlotMap, at: Address) -> Arc<Node> {
        let made = map.nodes.entry(at).or_insert_with_key(|(host, port)| {
            let seed = &self.seeds[0];
            let info = seed.clone().set_addr(located(seed.addr(), host.clone(), *port));
            let marker = Marker::in_cluster(
                &self.settings.prefix,
                self.settings.on_empty_store,
                self.settings.longest_ttl,
            )
            .recorded_in(self.settings.record.of_server(&format!("{host}:{port}")));
            let finder = Finder::Fixed(info);
            Arc::new(Node::start(Arc::clone(&self.settings), finder, marker, self.scripts))
        });
        Arc::clone(made)
    }

    /// Reads the map from a known node, or from a seed.
    async fn refresh(&self) -> Result<(), BackendError> {
        let ranges = self.read().await?;
        let empty = self.read_empty(&ranges).await;
        let mut map = self.map.lock();
        map.empty = empty.unwrap_or_else(|_| std::mem::take(&mut map.empty));
        let empty = map.empty.clone();
        for at in ranges.values().map(|(_, at)| at).chain(&empty) {
            self.node(&mut map, at.clone());
        }
        let mut kept = std::mem::take(&mut map.redirected_to);
        kept.extend(empty);
        map.nodes
            .retain(|at, _| kept.contains(at) || ranges.values().any(|(_, used)| used == at));
        map.ranges = ranges;
        map.moved.clear();
        Ok(())
    }

    /// The masters without slots, from CLUSTER NODES of a known node.
    async fn read_empty(&self, ranges: &Ranges) -> Result<HashSet<Address>, BackendError> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("NODES");
        let answer = self
            .any()?
            .command(&command)
            .await?
            .map_err(|error| of_script(&error))?;
        let nodes: String = redis::from_redis_value(answer).map_err(unavailable)?;
        let is_served = |name: &str| ranges.values().any(|(_, (host, _))| host == name);
        let host = host_of(&self.seeds[0]);
        Ok(slotless_masters(&nodes, is_served, host.as_deref())
            .into_iter()
            .collect())
    }

    /// The most complete map of the known nodes, or else of the seeds. The first complete map ends
    /// the search. A node that was removed from the Cluster returns no slots at all.
    async fn read(&self) -> Result<Ranges, BackendError> {
        let (nodes, seeds) = (self.all(), self.seeds.iter().map(MapSource::Seed));
        let nodes = nodes.iter().filter(|node| node.live().is_ok()).map(MapSource::Node);
        match self.widest(nodes).await {
            Ok(ranges) => Ok(ranges),
            Err(_) => self.widest(seeds).await,
        }
    }

    async fn widest<'a>(&self, sources: impl Iterator<Item = MapSource<'a>>) -> Result<Ranges, BackendError> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let (mut widest, mut last) = (Ranges::new(), unavailable("no node returned a slot map"));
        for source in sources {
            let map = match source.query(&self.settings, &command).await {
                Ok(answer) => {
                    ranges(&answer, &self.seeds[0]).ok_or_else(|| unavailable("CLUSTER SLOTS cannot be read"))
                }
                Err(error) => Err(error),
            };
            match map {
                Ok(map) if served(&map) == u32::from(SLOTS) => return Ok(map),
                Ok(map) if served(&map) > served(&widest) => widest = map,
                Ok(_) => {}
                Err(error) => last = error,
            }
        }
        if widest.is_empty() { Err(last) } else { Ok(widest) }
    }

    fn update_health(&self, refreshed: Result<(), BackendError>) {
        let masters = self.map.lock().masters();
        let bad = masters
            .iter()
            .map(|node| node.health().borrow().clone())
            .find(|health| *health != Health::Serving);
        let health = match (refreshed, bad) {
            (_, Some(bad)) => bad,
            (Err(error), None) => Health::unavailable(error),
            (Ok(()), None) if self.map.lock().is_whole() => Health::Serving,
            (Ok(()), None) => Health::unavailable("some slots have no master"),
        };
        Health::report(&self.health, health);
    }
}

impl SlotMap {
    fn master(&self, slot: u16) -> Option<Arc<Node>> {
        let range = || {
            let (first, at) = self.ranges.range(slot..).next()?.1;
            (*first <= slot).then_some(at)
        };
        let at = self.moved.get(&slot).or_else(range)?;
        self.nodes.get(at).map(Arc::clone)
    }

    fn masters(&self) -> Vec<Arc<Node>> {
        let at: HashSet<&Address> = self.ranges.values().map(|(_, at)| at).collect();
        at.into_iter()
            .filter_map(|at| self.nodes.get(at))
            .map(Arc::clone)
            .collect()
    }

    fn is_whole(&self) -> bool {
        served(&self.ranges) == u32::from(SLOTS)
    }
}

/// The number of slots in these ranges.
fn served(ranges: &Ranges) -> u32 {
    let wide = |(last, (first, _)): (&u16, &(u16, Address))| u32::from(last.saturating_sub(*first)) + 1;
    ranges.iter().map(wide).sum()
}

/// A server from which the map is read.
enum MapSource<'a> {
    Node(&'a Arc<Node>),
    Seed(&'a ConnectionInfo),
}

impl MapSource<'_> {
    async fn query(&self, settings: &Settings, command: &Cmd) -> Result<Value, BackendError> {
        let answer = match self {
            Self::Node(node) => node.command(command).await?,
            Self::Seed(seed) => {
                let mut connection = connect(settings, settings.credentials.at_server(seed), |_| {}).await?;
                let answer = connection.send_packed_command(command).await;
                answer.and_then(Value::extract_error)
            }
        };
        answer.map_err(|error| of_script(&error))
    }
}

struct Route {
    node: Arc<Node>,
    asking: bool,
}

async fn follow(cluster: Weak<Cluster>) {
    while let Some(cluster) = cluster.upgrade() {
        let refreshed = cluster.refresh().await;
        cluster.update_health(refreshed);
        let serving = *cluster.health.borrow() == Health::Serving;
        let pause = if serving { REFRESH } else { REFRESH / 10 };
        tokio::select! {
            () = sleep(pause) => {}
            () = cluster.stale.notified() => sleep(Duration::from_millis(20)).await,
        }
    }
}

fn address(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// Parses the reply to CLUSTER SLOTS. A node that does not know its own host gets the seed's.
fn ranges(answer: &Value, seed: &ConnectionInfo) -> Option<Ranges> {
    let range = |value: &Value| {
        let parts = value.as_sequence()?;
        let master = parts.get(2)?.as_sequence()?;
        let number = |value: &Value| redis::from_redis_value_ref::<u16>(value).ok();
        let host: Option<String> = redis::from_redis_value_ref(master.first()?).ok()?;
        let host = host.filter(|host| !host.is_empty()).or_else(|| host_of(seed))?;
        let at = (host, number(master.get(1)?)?);
        Some((number(parts.get(1)?)?, (number(parts.first()?)?, at)))
    };
    answer.as_sequence()?.iter().map(range).collect()
}

fn host_of(info: &ConnectionInfo) -> Option<String> {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_computed_from_the_hash_tag_if_there_is_one() {
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"a:{foo}:b"), slot(b"foo"));
        assert_ne!(slot(b"a:{}:foo"), slot(b"foo"));
    }
}
