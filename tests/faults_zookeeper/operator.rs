//! Who changes what is stored by hand, and what is sent to store it.

use crate::harness::{ROOT, Servers};
use crate::raw::Connection;
use crate::requests::{Kind, has};

/// A client of ZooKeeper itself.
pub struct Operator(pub Connection);

/// A claim as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub lock: String,
    /// The name of its node.
    pub child: String,
    pub path: String,
}

#[allow(clippy::unused_async, reason = "the tests of every store wait for it")]
impl Operator {
    pub async fn open(store: &Servers) -> Self {
        Self(Connection::open(&store.servers[0].address()))
    }

    /// What is stored there.
    pub async fn read(&mut self, path: &str) -> Vec<u8> {
        self.0.read(path).expect("it is there")
    }

    /// Writes what is there.
    pub async fn write(&mut self, path: &str, data: &[u8]) {
        self.0.write(path, data).expect("it is there");
    }

    /// Creates what is not there.
    pub async fn create(&mut self, path: &str) {
        self.0.create(path, ("world", "anyone")).expect("it is not there");
    }

    /// Deletes what is there.
    pub async fn delete(&mut self, path: &str) {
        self.0.delete(path).expect("it is there");
    }

    /// Deletes the namespace.
    pub async fn delete_all(&mut self) {
        self.0.delete_all(ROOT);
    }

    /// The children of the children of a directory: their paths.
    fn below(&mut self, directory: &str) -> Vec<String> {
        let mut paths = Vec::new();
        for bucket in self.0.children(directory).expect("the buckets") {
            let bucket = format!("{directory}/{bucket}");
            let children = self.0.children(&bucket).unwrap_or_default();
            paths.extend(children.into_iter().map(|child| format!("{bucket}/{child}")));
        }
        paths
    }

    /// All claims: who holds, and who waits.
    pub async fn claims(&mut self) -> Vec<Claim> {
        let mut found = Vec::new();
        for path in self.below(&format!("{ROOT}/l")) {
            let lock = path.rsplit('/').next().unwrap_or_default();
            let claim = |child: String| Claim {
                lock: lock.to_owned(),
                path: format!("{path}/{child}"),
                child,
            };
            found.extend(self.0.children(&path).unwrap_or_default().into_iter().map(claim));
        }
        found
    }

    /// The path of a lock's first claim whose name begins so.
    pub async fn claim(&mut self, lock: &str, begin: &str) -> String {
        let claims = self.claims().await.into_iter();
        let mut claims = claims.filter(|claim| claim.lock == lock && claim.child.starts_with(begin));
        claims.next().expect("a claim").path
    }

    /// Creates a child of a lock, and returns its path.
    pub async fn create_child(&mut self, lock: &str, name: &str) -> String {
        let path = format!("{}/{name}", self.lock(lock));
        self.create(&path).await;
        path
    }

    /// Writes the record of a claim.
    pub async fn write_record(&mut self, path: &str, data: &[u8]) {
        self.write(path, data).await;
    }

    /// The path of a lock's node.
    fn lock(&mut self, lock: &str) -> String {
        let locks = self.below(&format!("{ROOT}/l")).into_iter();
        let mut locks = locks.filter(|path| path.rsplit('/').next() == Some(lock));
        locks.next().expect("its node")
    }

    /// The paths of the records of requests.
    pub async fn records(&mut self) -> Vec<String> {
        self.below(&format!("{ROOT}/c"))
    }

    /// How many sessions the replicas have.
    pub async fn sessions(&mut self) -> usize {
        self.0.children(&format!("{ROOT}/s")).expect("the fences").len()
    }

    /// Ends its session.
    pub async fn close(self) {
        assert!(self.0.close());
    }
}

/// Ends all sessions of the replicas from outside, and says how many.
#[allow(clippy::unused_async, reason = "the tests of every store wait for it")]
pub async fn end_sessions(store: &Servers) -> usize {
    let address = store.servers[0].address();
    let mut ended = 0;
    for session in store.servers[0].sessions() {
        if let Some(taken) = Connection::take_over(&address, session) {
            assert_eq!(taken.session(), session);
            ended += usize::from(taken.close());
        }
    }
    ended
}

/// Whether a part of the requests makes a child of this kind: `h-` or `q-`.
pub fn creates(part: &[u8], kind: &str) -> bool {
    has(part, Kind::Create, |path| path.contains(&format!("/{kind}")))
}

/// Whether a part of the requests writes what has this in its path.
pub fn sets(part: &[u8], of_path: &str) -> bool {
    has(part, Kind::Set, |path| path.contains(of_path))
}

/// Whether a part of the requests deletes what is at this path.
pub fn deletes(part: &[u8], path: &str) -> bool {
    has(part, Kind::Delete, |deleted| deleted == path)
}

/// Whether a part of the answers has one to a multi that checks a fence: it grants or enqueues.
pub fn grants_or_enqueues(mut answers: &[u8]) -> bool {
    /// The length, then the number, the zxid and the code.
    const HEADER: usize = 4 + 16;
    /// What a check answers.
    const CHECKED: [u8; 9] = [0, 0, 0, 13, 0, 0, 0, 0, 0];
    while answers.len() >= HEADER + CHECKED.len() {
        let length = u32::from_be_bytes(answers[..4].try_into().expect("four bytes"));
        if answers[HEADER..].starts_with(&CHECKED) {
            return true;
        }
        let next = answers.len().min(4 + usize::try_from(length).expect("a length"));
        answers = &answers[next..];
    }
    false
}
