//! One ZooKeeper server, beside bare requests of the same client and beside Curator's lock.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use common::zookeeper as servers;
use fencepost::backend::tree::store::{ConnectionState, Op, Tree};
use fencepost::backend::zookeeper::Store;
use fencepost::backend::zookeeper::client::Client;
use fencepost::backend::zookeeper::settings::{Credentials, Settings};
use tokio::sync::mpsc;

use crate::own::{self, CLIENT, PROCESS, TWO};
use crate::process::Server;
use crate::side::{Bench, Bound, Caller, Figure, Side};
use crate::{Failure, peer};

/// With the heap of its own start script and both compilers: the ends of a minute, of 1 KB each, fill the tests' heap.
const AS_INSTALLED: [&str; 2] = ["-XX:TieredStopAtLevel=4", "-Xmx1000m"];
const BARE: &str = "bare create, delete";
const CURATOR: &str = "Curator's InterProcessMutex";

fn bounds() -> Vec<Bound> {
    let at_least = |(callers, hot), side, least| Bound {
        callers,
        hot,
        side,
        figure: Figure::Beside(CURATOR, least),
    };
    vec![
        at_least((64, false), CLIENT, 2.0),
        at_least((256, false), CLIENT, 3.0),
        at_least((256, false), PROCESS, 3.5),
        at_least((64, true), CLIENT, 2.0),
        at_least((64, true), TWO, 1.0),
    ]
}

/// The bench, where there is a ZooKeeper.
pub async fn bench(program: &Path, with_peer: bool) -> Result<Option<Bench>, Failure> {
    let options = servers::Options {
        flags: AS_INSTALLED.map(str::to_owned).into(),
        ..servers::Options::default()
    };
    let Some(zookeeper) = servers::program() else {
        return Ok(None);
    };
    let ensemble = Arc::new(servers::Ensemble::start_of(zookeeper, 1, &options));
    let address = ensemble.servers[0].address();
    let table =
        format!("backend = 'zookeeper'\nguarantee = 'cp'\n[namespaces.bench.zookeeper]\nservers = ['{address}']");
    let [server, second] = [Server::start(program, &table)?, Server::start(program, &table)?];
    let settings = Settings::new(ensemble.addresses());
    let backend = Store::open(settings.clone(), Credentials::default()).namespace(&own::namespace());
    let mut sides = own::sides(&server, own::locks(backend).await?).await?;
    sides.push(own::through_two([&server, &second]).await?);
    sides.push(bare_side(&settings).await?);
    if with_peer {
        sides.push(peer::side(CURATOR, "Curator", &address)?);
    }
    let [measured, counting] = [Arc::clone(&ensemble), Arc::clone(&ensemble)];
    Ok(Some(Bench {
        what: "ZooKeeper, one server".into(),
        server,
        sides,
        store_cpu: Box::new(move || measured.servers[0].cpu()),
        count: Some((
            "transactions",
            Box::new(move || counting.servers[0].zxid().expect("it serves") & 0xffff_ffff),
        )),
        size: None,
        bounds: bounds(),
        servers: Box::new((second, ensemble)),
    }))
}

async fn bare_side(settings: &Settings) -> Result<Side, Failure> {
    let (events, _) = mpsc::unbounded_channel();
    let client = Arc::new(Client::open(settings, Credentials::default(), events));
    let mut state = client.state();
    let state = state
        .wait_for(|state| matches!(state, ConnectionState::Connected(_)))
        .await?
        .clone();
    let ConnectionState::Connected(connected) = state else {
        return Err("no session".into());
    };
    let generation = connected.generation;
    Ok(Side::new(BARE, move |turn| {
        let client = Arc::clone(&client);
        async move {
            Ok(turn
                .all("bare", |caller| bare(Arc::clone(&client), generation, caller))
                .await)
        }
    })
    .only_own())
}

async fn bare(client: Arc<Client>, generation: u64, caller: Caller) -> usize {
    let (path, mut done) = (format!("/{}", caller.lock), 0);
    while Instant::now() < caller.until {
        let create = client.apply(generation, &[Op::create(&path, vec![0; 150])]);
        create.await.expect("it is created");
        let delete = client.apply(generation, &[Op::delete(&path, -1)]);
        delete.await.expect("it is deleted");
        done += 1;
    }
    done
}
