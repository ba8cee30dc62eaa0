//! The paths of a namespace's nodes, which the documentation of [`crate::backend::tree`] draws.
//!
//! A bucket is a part of the locks, by a hash of the name, so that no node has too many children.

use sha2::{Digest, Sha256};

use crate::backend::Forced;
use crate::name::{ClaimId, FencingToken, LockName, Namespace, Secret, decode};

/// The number of buckets.
pub const BUCKETS: u16 = 256;

/// See the module.
#[derive(Debug, Clone)]
pub struct Paths {
    root: String,
}

impl Paths {
    /// The paths of a namespace.
    pub fn new(root: &str, namespace: &Namespace) -> Self {
        Self {
            root: format!("{}/{namespace}", root.trim_end_matches('/')),
        }
    }

    /// The persistent nodes that everything else is under, parents first.
    pub fn directories(&self) -> Vec<String> {
        let ends = self.root.match_indices('/').skip(1).map(|(at, _)| at);
        let mut all: Vec<_> = ends.map(|at| self.root[..at].to_owned()).collect();
        all.push(self.root.clone());
        all.extend(["l", "c", "s", "f"].map(|part| format!("{}/{part}", self.root)));
        all
    }

    pub fn base(&self) -> String {
        format!("{}/base", self.root)
    }

    pub fn mint(&self) -> String {
        format!("{}/mint", self.root)
    }

    pub fn fence(&self, session: i64) -> String {
        format!("{}/s/{session:016x}", self.root)
    }

    /// The bucket of a lock.
    pub fn bucket_of(name: &LockName) -> u16 {
        // FNV-1a: every release must choose the same bucket.
        let hash = name.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        u16::try_from(hash % u64::from(BUCKETS)).unwrap_or(0)
    }

    /// The node of all buckets of locks.
    pub fn all_locks(&self) -> String {
        format!("{}/l", self.root)
    }

    /// The node of a bucket of locks.
    pub fn locks(&self, bucket: u16) -> String {
        format!("{}/{bucket:02x}", self.all_locks())
    }

    /// The node of a bucket of requests and ends.
    pub fn memory(&self, bucket: u16) -> String {
        format!("{}/c/{bucket:02x}", self.root)
    }

    pub fn lock(&self, name: &LockName) -> String {
        format!("{}/{}", self.locks(Self::bucket_of(name)), name.encoded())
    }

    /// The record of a request of this claim or hold.
    pub fn request(&self, name: &LockName, id: ClaimId) -> String {
        format!("{}/r-{id}", self.memory(Self::bucket_of(name)))
    }

    /// The end of a claim without a request id.
    pub fn end(&self, name: &LockName, id: ClaimId) -> String {
        format!("{}/e-{id}", self.memory(Self::bucket_of(name)))
    }

    /// The end of another hold of a claim, which its lease names by the secret alone.
    pub fn end_of_hold(&self, name: &LockName, claim: ClaimId, secret: Secret) -> String {
        let hash = Sha256::new()
            .chain_update(claim.as_bytes())
            .chain_update(secret.as_bytes())
            .finalize();
        let mut id = [0; 16];
        id.copy_from_slice(&hash[..16]);
        self.end(name, ClaimId::from_bytes(id))
    }

    /// The node of the notices of forced releases.
    pub fn all_forced(&self) -> String {
        format!("{}/f", self.root)
    }

    /// The notice that a claim was forcibly released.
    pub fn forced(&self, name: &LockName, token: FencingToken) -> String {
        format!("{}/{token}-{}", self.all_forced(), name.encoded())
    }

    /// What a notice says.
    pub fn forced_at(&self, path: &str) -> Option<Forced> {
        let notice = path.strip_prefix(&self.root)?.strip_prefix("/f/")?;
        let (token, name) = notice.split_once('-')?;
        Some(Forced {
            lock: decode_name(name)?,
            token: FencingToken::new(token.parse().ok()?).ok()?,
        })
    }

    /// The lock of a path, and the child's name if it is that of a child.
    pub fn split(&self, path: &str) -> Option<(LockName, Option<String>)> {
        let rest = path.strip_prefix(&self.root)?.strip_prefix("/l/")?;
        let mut parts = rest.split('/').skip(1);
        let name = decode_name(parts.next()?)?;
        Some((name, parts.next().map(str::to_owned)))
    }
}

/// The lock that a node is named for.
pub fn decode_name(encoded: &str) -> Option<LockName> {
    LockName::new(&decode(encoded)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_back_to_their_lock() {
        let paths = Paths::new("/a/b/", &Namespace::new("n").unwrap());
        assert_eq!(paths.directories()[..3], ["/a", "/a/b", "/a/b/n"]);
        for name in ["x", "a/b", "..", "%41", "ü"] {
            let name = LockName::new(name).unwrap();
            let path = paths.lock(&name);
            assert_eq!(paths.split(&path), Some((name.clone(), None)));
            let child = format!("{path}/h-1");
            assert_eq!(paths.split(&child), Some((name.clone(), Some("h-1".into()))));
            let (lock, token) = (name, FencingToken::new(7).unwrap());
            let notice = paths.forced(&lock, token);
            assert_eq!(paths.forced_at(&notice), Some(Forced { lock, token }));
        }
        assert_eq!(paths.split("/a/b/other/l/00/x"), None);
    }
}
