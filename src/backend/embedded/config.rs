//! The embedded store's configuration table and settings.

use std::any::Any;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Access;

use super::Store;
use crate::backend::driver::{
    InvalidSetting, OpenStore, StoreConfig, StoreError, StoreIdentity, StoreSettings, StoreTable,
};
use crate::backend::{Backend, CLAIM_LIMIT, Guarantee};
use crate::files::check_folder;
use crate::name::Namespace;
use crate::schema::{Count, section};

/// The path of a store in memory, without a file.
const MEMORY: &str = ":memory:";
/// The first bytes of every file of a store.
const MAGIC: &[u8] = b"redb";

section! {
    /// The embedded store. Namespaces with the same path share one file.
    pub struct EmbeddedSection {
        /// The file. A relative path is below data_dir. ":memory:" stores nothing on disk, for
        /// trials.
        path: PathBuf = PathBuf::from("fencepost.redb"),
        /// How many claims the namespace may have in all its locks together: holders with each of
        /// their holds, and waiters.
        claim_limit: Count<1, 10_000_000> = Count::nearest(CLAIM_LIMIT),
    }
}

/// The settings of a namespace in an embedded store.
#[derive(Debug, PartialEq, Eq)]
struct EmbeddedConfig {
    /// The absolute path of the file; `None` for a store in memory. Namespaces with the same file share it.
    path: Option<PathBuf>,
    /// The same below the data directory, which may be moved as a whole.
    name: Option<PathBuf>,
    claim_limit: u32,
}

impl StoreTable for EmbeddedSection {
    fn check(&self, data_dir: Option<&Path>) -> Result<StoreConfig, InvalidSetting> {
        let path = check_path(&self.path, data_dir)?;
        let below = |path: &PathBuf| Some(path.strip_prefix(data_dir?).ok()?.to_owned());
        Ok(StoreConfig::new(EmbeddedConfig {
            name: path.as_ref().map(|path| below(path).unwrap_or_else(|| path.clone())),
            path,
            claim_limit: self.claim_limit.get(),
        }))
    }
}

impl StoreSettings for EmbeddedConfig {
    fn check_files(&self) -> Result<(), InvalidSetting> {
        let checked = self.path.as_deref().map_or(Ok(()), check_file);
        checked.map_err(|problem| InvalidSetting::new("path", problem))
    }

    fn guarantee(&self) -> Guarantee {
        match self.path {
            Some(_) => Guarantee::Cp,
            None => Guarantee::Ap,
        }
    }

    fn claim_limit(&self) -> u32 {
        self.claim_limit
    }

    fn file(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    fn is_same_store(&self, other: &dyn Any) -> bool {
        other.downcast_ref().is_some_and(|other: &Self| other.path == self.path)
    }

    fn identity(&self) -> Option<StoreIdentity> {
        let path = self.name.as_deref()?.display();
        Some(StoreIdentity::new(format!("embedded, path {path}"), []))
    }

    fn open(&self, _: Duration) -> Result<Arc<dyn OpenStore>, StoreError> {
        let Some(path) = &self.path else {
            return Ok(Arc::new(Store::memory()));
        };
        let opened = Store::open(path);
        let store = opened.map_err(|error| StoreError::new(format!("the embedded store at {path:?}"), error))?;
        Ok(Arc::new(store))
    }
}

impl OpenStore for Store {
    fn namespace(&self, namespace: &Namespace, claim_limit: u32) -> Arc<dyn Backend> {
        self.namespace_of(namespace.clone(), claim_limit)
    }
}

fn check_path(path: &Path, data_dir: Option<&Path>) -> Result<Option<PathBuf>, InvalidSetting> {
    if path == Path::new(MEMORY) {
        return Ok(None);
    }
    if path.file_name().is_none() {
        let problem = format!("must be the path of a file or {MEMORY:?}, not {path:?}");
        return Err(InvalidSetting::new("path", problem));
    }
    match data_dir {
        Some(directory) => Ok(Some(directory.join(path))),
        None if path.is_absolute() => Ok(Some(path.to_owned())),
        None => Err(InvalidSetting::of_server(
            "data_dir",
            "must be set where the environment has neither XDG_DATA_HOME nor HOME",
        )),
    }
}

/// Checks that a store could use or create this file.
fn check_file(file: &Path) -> Result<(), String> {
    let Ok(found) = fs::metadata(file) else {
        return check_folder(file.parent().unwrap_or(file));
    };
    let path = file.display();
    if !found.is_file() {
        return Err(format!("must be the path of a file, and {path} is something else"));
    }
    let access = Access::READ_OK | Access::WRITE_OK;
    rustix::fs::access(file, access).map_err(|error| format!("{path}: cannot be read and written: {error}"))?;
    let mut begins = Vec::new();
    let opened = fs::File::open(file).map(|file| file.take(MAGIC.len() as u64));
    let read = opened.and_then(|mut file| file.read_to_end(&mut begins));
    read.map_err(|error| format!("{path}: cannot be read: {error}"))?;
    if begins.is_empty() || begins == MAGIC {
        Ok(())
    } else {
        Err(format!(
            "must be a file of an embedded store, and {path} holds something else"
        ))
    }
}
