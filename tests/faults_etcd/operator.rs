//! Who changes what is stored by hand, and what is sent to store it.

use etcd_client::{Client, DeleteOptions, GetOptions, KeyValue};

use crate::harness::{ROOT, Servers};

/// A client of etcd itself.
pub struct Operator(Client);

/// A claim as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub lock: String,
    /// The name of its node.
    pub child: String,
    /// Its key.
    pub path: String,
}

impl Operator {
    pub async fn open(store: &Servers) -> Self {
        Self(
            Client::connect([store.servers[0].url()], None)
                .await
                .expect("etcd answers"),
        )
    }

    async fn under(&mut self, prefix: &str) -> Vec<KeyValue> {
        let read = self.0.get(prefix, Some(GetOptions::new().with_prefix())).await;
        read.expect("etcd answers").take_kvs()
    }

    /// What is stored there.
    pub async fn read(&mut self, path: &str) -> Vec<u8> {
        let read = self.0.get(path, None).await.expect("etcd answers");
        read.kvs().first().expect("it is there").value().to_vec()
    }

    /// Writes what is there.
    pub async fn write(&mut self, path: &str, data: &[u8]) {
        self.0.put(path, data, None).await.expect("etcd answers");
    }

    /// Creates what is not there.
    pub async fn create(&mut self, path: &str) {
        self.write(path, &[]).await;
    }

    /// Deletes what is there.
    pub async fn delete(&mut self, path: &str) {
        let gone = self.0.delete(path, None).await.expect("etcd answers");
        assert_eq!(gone.deleted(), 1, "{path}");
    }

    /// Deletes the namespace.
    pub async fn delete_all(&mut self) {
        let all = DeleteOptions::new().with_prefix();
        self.0.delete(ROOT, Some(all)).await.expect("etcd answers");
    }

    /// All claims: who holds, and who waits.
    pub async fn claims(&mut self) -> Vec<Claim> {
        let claim = |kv: KeyValue| {
            let path = kv.key_str().expect("text").to_owned();
            let lock = path.split('/').nth_back(1).filter(|_| path.split('/').count() == 7)?;
            let name = kv.value().split(|byte| *byte == b'\n').next()?;
            let child = format!("{}~{:x}", String::from_utf8_lossy(name), kv.create_revision());
            Some(Claim {
                lock: lock.to_owned(),
                child,
                path,
            })
        };
        self.under(&format!("{ROOT}/l/"))
            .await
            .into_iter()
            .filter_map(claim)
            .collect()
    }

    /// The path of a lock's first claim whose name begins so.
    pub async fn claim(&mut self, lock: &str, begin: &str) -> String {
        let claims = self.claims().await.into_iter();
        let mut claims = claims.filter(|claim| claim.lock == lock && claim.child.starts_with(begin));
        claims.next().expect("a claim").path
    }

    /// Creates a child of a lock that has one, and returns its path.
    pub async fn create_child(&mut self, lock: &str, name: &str) -> String {
        let path = format!("{}-later", self.claim(lock, "").await);
        self.write(&path, format!("{name}\n").as_bytes()).await;
        path
    }

    /// Writes the record of a claim.
    pub async fn write_record(&mut self, path: &str, data: &[u8]) {
        let value = self.read(path).await;
        let name = value.split(|byte| *byte == b'\n').next().expect("a name");
        self.write(path, &[name, b"\n", data].concat()).await;
    }

    /// The paths of the records of requests.
    pub async fn records(&mut self) -> Vec<String> {
        let all = self.under(&format!("{ROOT}/c/")).await;
        let paths = all.iter().map(|kv| kv.key_str().expect("text").to_owned());
        paths.filter(|path| path.split('/').count() == 6).collect()
    }

    async fn fences(&mut self) -> Vec<KeyValue> {
        self.under(&format!("{ROOT}/s/")).await
    }

    /// How many sessions the replicas have.
    pub async fn sessions(&mut self) -> usize {
        self.fences().await.len()
    }

    /// It has no session of its own.
    pub async fn close(self) {}
}

/// Ends all sessions of the replicas from outside, and says how many.
pub async fn end_sessions(store: &Servers) -> usize {
    let mut operator = Operator::open(store).await;
    let mut ended = 0;
    for fence in operator.fences().await {
        ended += usize::from(operator.0.lease_revoke(fence.lease()).await.is_ok());
    }
    ended
}

/// Each path in a part of the requests, with what is before and behind it.
fn paths(part: &[u8]) -> impl Iterator<Item = (&[u8], &str, &[u8])> {
    let begins = part
        .windows(ROOT.len())
        .enumerate()
        .filter(|(_, at)| *at == ROOT.as_bytes());
    begins.map(|(at, _)| {
        let length = part[at..].iter().take_while(|byte| byte.is_ascii_graphic()).count();
        let path = std::str::from_utf8(&part[at..at + length]).expect("ASCII");
        (&part[..at], path, &part[at + length..])
    })
}

/// Whether a part of the requests makes a child of this kind: `h-` or `q-`.
pub fn creates(part: &[u8], kind: &str) -> bool {
    ["x-", "s-", "p1."].iter().any(|mode| {
        let begin = format!("{kind}{mode}");
        part.windows(begin.len()).any(|at| at == begin.as_bytes())
    })
}

/// Whether a part of the requests writes what has this in its path.
pub fn sets(part: &[u8], of_path: &str) -> bool {
    // The tag of a value.
    paths(part).any(|(_, path, behind)| path.contains(of_path) && behind.first() == Some(&0x12))
}

/// Whether a part of the requests deletes what is at this path.
pub fn deletes(part: &[u8], path: &str) -> bool {
    let length = u8::try_from(path.len()).expect("a short path");
    // The tags of a deletion and of its key.
    let begin = [0x1a, length + 2, 0x0a, length];
    paths(part).any(|(before, found, _)| found.starts_with(path) && before.ends_with(&begin))
}

/// Whether a part of the answers may be one to a transaction.
pub fn grants_or_enqueues(answers: &[u8]) -> bool {
    /// Beyond what a sign of life is answered with.
    const LARGE: usize = 50;
    answers.len() > LARGE
}
