use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A configuration that stores nothing.
const IN_MEMORY: &str = "[namespaces.default.embedded]\npath = ':memory:'\n";

/// Counts its calls, and can change the configuration file while it is being read.
#[derive(Clone, Default)]
struct Counting {
    changes: Option<PathBuf>,
    prepared: Arc<AtomicUsize>,
    renewed: Arc<AtomicUsize>,
}

impl ReloadPart for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn prepare(&self, _: &Config) -> Result<Apply, Problem> {
        let is_first = self.prepared.fetch_add(1, Ordering::SeqCst) == 0;
        if let Some(file) = self.changes.as_ref().filter(|_| is_first) {
            fs::write(file, format!("{IN_MEMORY}# changed\n"))?;
        }
        Ok(Box::new(|| {}))
    }

    fn renew(&self, _: &Config) -> Vec<Problem> {
        self.renewed.fetch_add(1, Ordering::SeqCst);
        Vec::new()
    }
}

/// Panics at its first change.
struct Panicking(Arc<AtomicUsize>);

impl ReloadPart for Panicking {
    fn name(&self) -> &'static str {
        "panicking"
    }

    fn prepare(&self, _: &Config) -> Result<Apply, Problem> {
        let applied = Arc::clone(&self.0);
        assert!(applied.fetch_add(1, Ordering::SeqCst) > 0, "on purpose");
        Ok(Box::new(move || {
            applied.fetch_add(10, Ordering::SeqCst);
        }))
    }
}

// G188
#[tokio::test]
async fn a_change_at_which_the_server_panicked_is_applied_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("f.toml");
    fs::write(&file, IN_MEMORY).expect("a file");
    let (part, applied) = (Counting::default(), Arc::<AtomicUsize>::default());
    let stop = CancellationToken::new();
    let reload = reload_of(&file, &part).await.with(Panicking(Arc::clone(&applied)));
    let running = tokio::spawn(reload.run(futures::stream::pending(), stop.clone()));
    let is_applied = async {
        while applied.load(Ordering::SeqCst) < 10 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), is_applied)
        .await
        .expect("it is read again");
    stop.cancel();
    running.await.expect("no panic");
}

async fn reload_of(file: &Path, part: &Counting) -> Reload {
    let overrides = Overrides {
        config: Some(file.to_owned()),
        ..Overrides::default()
    };
    let config = Config::load(overrides.clone(), stores::ALL).expect("a configuration");
    let stores = stores::open(&config, None).await.expect("stores");
    Reload::new((overrides, FileSnapshots::default()), config, stores, None).with(part.clone())
}

#[tokio::test]
async fn a_change_during_a_reload_causes_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("f.toml");
    fs::write(&file, IN_MEMORY).expect("a file");
    let part = Counting {
        changes: Some(file.clone()),
        ..Counting::default()
    };
    let stop = CancellationToken::new();
    let reload = reload_of(&file, &part).await;
    let running = tokio::spawn(reload.run(futures::stream::pending(), stop.clone()));
    let twice = async {
        while part.prepared.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), twice)
        .await
        .expect("it is read again");
    stop.cancel();
    running.await.expect("no panic");
}

#[tokio::test]
async fn files_are_read_again_while_a_change_waits_for_a_closing_namespace() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("f.toml");
    let write = |names: &[&str]| {
        let table = |name: &&str| format!("[namespaces.{name}.embedded]\npath = ':memory:'\n");
        fs::write(&file, names.iter().map(table).collect::<String>()).expect("a file");
    };
    write(&["a", "b"]);
    let part = Counting::default();
    let mut reload = reload_of(&file, &part).await;
    let called = reload.stores.namespaces().get("b").expect("a namespace");
    write(&["a"]);
    reload.reload_and_log().await;
    assert_eq!(part.renewed.load(Ordering::SeqCst), 0);
    write(&["a", "b"]);
    reload.reload_and_log().await;
    assert!(reload.waits_for.is_some(), "a call keeps it open");
    assert_eq!(part.renewed.load(Ordering::SeqCst), 1);
    drop(called);
}

#[tokio::test]
async fn the_files_of_a_refused_configuration_are_polled() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("f.toml"), IN_MEMORY).expect("a file");
    fs::write(at("bearers"), "# none\n").expect("a file");
    let mut reload = reload_of(&at("f.toml"), &Counting::default()).await;
    assert!(!reload.files().contains(&at("bearers")));
    let auth = format!("{IN_MEMORY}[auth]\nbearer_file = '{}'\n", at("bearers").display());
    fs::write(at("f.toml"), auth).expect("a file");
    let refused = reload.reload().await;
    assert!(matches!(refused, Err(Refused::NeedsRestart { .. })), "{refused:?}");
    assert!(reload.files().contains(&at("bearers")));
}

#[test]
fn a_change_between_a_record_and_a_poll_is_detected() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    let snapshot = || {
        let mut recorded = FileSnapshots::default();
        recorded.record([file.clone()]);
        recorded
    };
    let mut recorded = snapshot();
    fs::write(&file, "first").expect("a file");
    recorded.record([file.clone()]);
    assert_ne!(recorded, snapshot(), "the first record counts");
    assert_eq!(snapshot(), snapshot());
}

#[test]
fn a_fingerprint_changes_when_a_link_is_replaced_or_the_file_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("old")).expect("a folder");
    fs::create_dir(at("new")).expect("a folder");
    fs::write(at("old/file"), "same").expect("a file");
    fs::write(at("new/file"), "same").expect("a file");
    symlink("old", at("data")).expect("a link");
    symlink("data/file", at("file")).expect("a link");
    let old = Fingerprint::of(&at("file"));
    assert_eq!(old, Fingerprint::of(&at("file")));
    symlink("new", at("next")).expect("a link");
    fs::rename(at("next"), at("data")).expect("the swap");
    let new = Fingerprint::of(&at("file"));
    assert_ne!(old, new, "the same text in another file");
    fs::write(at("new/file"), "longer").expect("a file");
    assert_ne!(new, Fingerprint::of(&at("file")));
    let longer = Fingerprint::of(&at("file"));
    let modified = fs::metadata(at("file"))
        .and_then(|file| file.modified())
        .expect("a time");
    // Longer than the clock of a file system stands still.
    std::thread::sleep(Duration::from_millis(20));
    fs::write(at("new/file"), "others").expect("a file");
    let copied = fs::File::options().write(true).open(at("new/file"));
    copied.and_then(|file| file.set_modified(modified)).expect("a time");
    assert_ne!(
        longer,
        Fingerprint::of(&at("file")),
        "the same size and modification time"
    );
    fs::remove_file(at("new/file")).expect("a file");
    assert_eq!(Fingerprint(None), Fingerprint::of(&at("file")));
}
