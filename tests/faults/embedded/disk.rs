//! A disk that is full, and has space again.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::client::{Ask, Caller, Held, until, why};
use crate::server::{Home, Server};

const TTL: Duration = Duration::from_secs(300);
/// So much metadata that a few hundred leases need space that the file does not have.
const PADDING: usize = 3000;
/// More leases than fit in the space that a fresh file has to itself.
const MANY: usize = 4000;
/// How many calls are made of a server whose disk is full.
const TRIES: usize = 60;
const TMPFS_MIB: usize = 8;

/// Something that can be full.
trait Disk {
    fn fill(&self);
    fn free(&self);
}

/// The file may not grow: what the system says of a limit, it says of a full disk in other words.
struct Limit<'a> {
    server: &'a Server,
    file: PathBuf,
}

impl Limit<'_> {
    fn set(&self, bytes: Option<u64>) {
        let id = i32::try_from(self.server.id()).ok().and_then(Pid::from_raw);
        let limit = Rlimit {
            current: bytes,
            maximum: None,
        };
        prlimit(id, Resource::Fsize, limit).expect("the limit is set");
    }
}

impl Disk for Limit<'_> {
    fn fill(&self) {
        self.set(Some(size(&self.file)));
    }

    fn free(&self) {
        self.set(None);
    }
}

/// A small file system of its own, full of one other file.
struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Mounts it, where this may be done.
    fn mount(at: &Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={TMPFS_MIB}m"), "tmpfs"]);
        let mounted = mount.arg(at).stderr(Stdio::null()).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(at.into()))
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Disk for Tmpfs {
    fn fill(&self) {
        let all = vec![1; TMPFS_MIB << 20];
        std::fs::write(self.filler(), all).expect_err("it does not fit");
    }

    fn free(&self) {
        std::fs::remove_file(self.filler()).expect("the filler is there");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // At once for new users; for those who still have a file open there, when they close it.
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(
            unmounted.is_ok_and(|status| status.success()),
            "{:?} stays mounted",
            self.0
        );
    }
}

fn size(file: &Path) -> u64 {
    std::fs::metadata(file).expect("the file is there").len()
}

/// All that was answered OK, in the order of the answers.
#[derive(Default)]
struct Answered {
    held: Vec<(String, Held)>,
    released: Vec<(String, Held)>,
    refused: usize,
}

impl Answered {
    /// Asks for one more lock, and says whether it was granted.
    async fn ask(&mut self, caller: &Caller, number: usize) -> bool {
        let name = format!("lock-{number}");
        let ask = Ask {
            padding: PADDING,
            ..Ask::once(TTL)
        };
        match caller.acquire(&name, ask).await {
            Ok(held) => self.held.push((name, held)),
            Err(status) => {
                assert_eq!(why(&status), "BACKEND_UNAVAILABLE", "{status:?}");
                self.refused += 1;
                return false;
            }
        }
        true
    }

    /// Gives the oldest lease back, if that can be done.
    async fn release(&mut self, caller: &Caller) {
        if self.held.is_empty() {
            return;
        }
        let (name, held) = self.held.remove(0);
        match caller.release(&held).await {
            Ok(()) => self.released.push((name, held)),
            Err(status) => {
                assert_eq!(why(&status), "BACKEND_UNAVAILABLE", "{status:?}");
                self.refused += 1;
            }
        }
    }

    /// Checks that nothing that was answered is lost, and no token was given twice.
    async fn is_all_there(&self, caller: &Caller) {
        for (name, held) in &self.held {
            assert!(caller.holds(name, held.token).await, "{name} {held:?}");
        }
        for (name, held) in &self.released {
            assert!(!caller.holds(name, held.token).await, "{name} {held:?}");
        }
        let tokens: Vec<u64> = self.held.iter().map(|(_, held)| held.token).collect();
        assert!(tokens.is_sorted_by(|a, b| a < b), "tokens fell or came twice");
    }
}

/// Fills the disk under a server, asks it for what it cannot keep, and gives the space back.
async fn rides_out_a_full_disk(caller: &Caller, disk: &impl Disk) -> Answered {
    let mut answered = Answered::default();
    assert!(answered.ask(caller, 0).await, "there is space");
    disk.fill();
    let mut number = 1;
    while answered.ask(caller, number).await {
        number += 1;
        assert!(number < MANY, "the disk is never full");
    }
    let (before, mut granted) = (answered.held.len(), 0);
    // A full disk is looked at anew now and then, so it may seem to serve for a moment.
    until("operators see it", async || {
        let info = caller.info().await;
        let away = info.health().as_str_name() == "NAMESPACE_HEALTH_AWAY";
        (away && !info.reason.is_empty() && !caller.serves().await).then_some(())
    })
    .await;
    for try_ in 0..TRIES {
        number += 1;
        granted += usize::from(answered.ask(caller, number).await);
        if try_ % 4 == 0 {
            answered.release(caller).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(
        answered.refused > TRIES / 2,
        "a full disk refused {} calls",
        answered.refused
    );
    println!(
        "full after {before} leases; then {} refused, {granted} granted, {} released",
        answered.refused,
        answered.released.len()
    );
    disk.free();
    until("it serves again", async || {
        number += 1;
        (answered.ask(caller, number).await && caller.serves().await).then_some(())
    })
    .await;
    answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_file_that_may_not_grow_stops_grants_and_loses_none() {
    let home = Home::new();
    let mut server = home.start();
    let caller = Caller::of(&server);
    let disk = Limit {
        server: &server,
        file: home.file(),
    };
    let answered = rides_out_a_full_disk(&caller, &disk).await;
    answered.is_all_there(&caller).await;
    assert!(server.lives());
    server.kill();
    let server = home.start();
    answered.is_all_there(&Caller::of(&server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_full_disk_stops_grants_and_loses_none() {
    let home = Home::new();
    let Some(disk) = Tmpfs::mount(home.data()) else {
        println!("passed without a run: no file system can be mounted here");
        return;
    };
    let mut server = home.start();
    let caller = Caller::of(&server);
    let answered = rides_out_a_full_disk(&caller, &disk).await;
    answered.is_all_there(&caller).await;
    assert!(server.lives());
    server.kill();
    let server = home.start();
    answered.is_all_there(&Caller::of(&server)).await;
    server.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_was_granted_before_a_full_disk_outlives_a_kill_while_it_is_full() {
    let home = Home::new();
    let server = home.start();
    let caller = Caller::of(&server);
    let mut answered = Answered::default();
    assert!(answered.ask(&caller, 0).await, "there is space");
    let disk = Limit {
        server: &server,
        file: home.file(),
    };
    disk.fill();
    let mut number = 1;
    while answered.ask(&caller, number).await {
        number += 1;
        assert!(number < MANY, "the disk is never full");
    }
    server.kill();
    let server = home.start();
    let caller = Caller::of(&server);
    answered.is_all_there(&caller).await;
    assert!(answered.ask(&caller, number).await, "there is space again");
    answered.is_all_there(&caller).await;
}
