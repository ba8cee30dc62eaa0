//! Each recipe of `RECIPES.md`, run as it stands there, with commands that write down what they do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::cli::program::{Fixture, PROGRAM, Running, content, until_written};
use crate::cli::server::until;

/// The lines of a recipe, by the heading above them.
pub fn recipe(heading: &str) -> String {
    let [lines] = recipe_of(heading);
    lines
}

/// The blocks of lines of a recipe, by the heading above them.
pub fn recipe_of<const BLOCKS: usize>(heading: &str) -> [String; BLOCKS] {
    let page = include_str!("../../RECIPES.md");
    let section = page.split("\n## ").find(|section| section.starts_with(heading));
    let section = section.unwrap_or_else(|| panic!("no recipe {heading:?}"));
    let blocks = section.split("```sh\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().expect("a block of lines").to_owned());
    blocks.collect::<Vec<_>>().try_into().expect("so many blocks")
}

/// A folder whose programs are found first.
pub struct Kitchen {
    pub fixture: Fixture,
}

impl Kitchen {
    pub fn new() -> Self {
        Self {
            fixture: Fixture::start(),
        }
    }

    /// A program of these lines of a shell.
    pub fn program(&self, name: &str, lines: &str) {
        let file = self.fixture.path(name);
        fs::write(&file, format!("#!/bin/sh\n{lines}\n")).expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a program");
    }

    /// Lines of a shell, run in that folder.
    pub fn lines(&self, lines: &str, arguments: &[&str]) -> Command {
        let folder = self.fixture.path("");
        let own = Path::new(PROGRAM).parent().expect("a folder");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        shell.args(["-c", lines, "sh"]).args(arguments);
        shell
            .current_dir(&folder)
            .env("PATH", format!("{}:{}:{path}", folder.display(), own.display()))
            .env("FENCEPOST_ADDR", &self.fixture.server.address)
            .env_remove("FENCEPOST_LEASE_ID");
        shell
    }

    pub fn begin(&self, lines: &str, arguments: &[&str]) -> Running {
        Running::new(self.lines(lines, arguments))
    }

    pub fn written(&self, name: &str) -> String {
        content(&self.fixture.path(name))
    }
}

/// How many ran at once at most: each wrote `+` when it began and `-` when it ended.
pub fn most_at_once(written: &str) -> usize {
    let (mut now, mut most) = (0, 0);
    for line in written.lines() {
        now = if line == "+" { now + 1 } else { now - 1 };
        most = most.max(now);
    }
    most
}

#[test]
fn a_cron_job_runs_on_one_of_many_hosts() {
    let kitchen = Kitchen::new();
    kitchen.program("make-reports", "echo made >> runs");
    let lines = recipe("A cron job").replace("--ttl 30s --at-least 1m", "--ttl 1s --at-least 4s");
    assert!(lines.contains("--at-least 4s"), "{lines}");
    let mut hosts: Vec<Running> = (0..4).map(|_| kitchen.begin(&lines, &[])).collect();
    until_written(&kitchen.fixture.path("runs"));
    hosts.push(kitchen.begin(&lines, &[]));
    let codes: Vec<_> = hosts.iter_mut().map(Running::end).collect();
    assert_eq!(codes, [Some(0); 5]);
    assert_eq!(kitchen.written("runs"), "made\n");
    kitchen.program("make-reports", "exit 9");
    until("the lock is free", || {
        (kitchen.fixture.count("default/cron/reports", "holderCount") == 0).then_some(())
    });
    assert_eq!(kitchen.begin(&lines, &[]).end(), Some(1), "its own failure is one");
}

#[test]
fn deployments_go_one_at_a_time_and_tell_whose_they_are() {
    let kitchen = Kitchen::new();
    kitchen.program(
        "deploy",
        "echo + >> runs; sleep 0.3; echo - >> runs; echo \"$1\" >> where",
    );
    let lines = recipe("A deploy lock");
    let job = |name: &str| {
        let mut job = kitchen.lines(&lines, &[]);
        job.env("CI_JOB", name);
        Running::new(job)
    };
    let held = kitchen.fixture.held("default/deploy/production", "by hand");
    let mut jobs = Vec::new();
    for number in 1..=3 {
        jobs.push(job(&format!("job-{number}")));
        let waits = || kitchen.fixture.count("default/deploy/production", "waiterCount");
        until("the job waits", || (waits() == number).then_some(()));
    }
    let shown = kitchen.fixture.said(&["get", "default/deploy/production"]);
    for name in ["by hand", "job-1", "job-2", "job-3"] {
        assert!(shown.contains(name), "{shown}");
    }
    kitchen
        .fixture
        .said(&["release", held["leaseId"].as_str().expect("an id")]);
    for job in &mut jobs {
        assert_eq!(job.end(), Some(0));
    }
    assert_eq!(most_at_once(&kitchen.written("runs")), 1);
    assert_eq!(kitchen.written("where"), "production\n".repeat(3));
}

#[test]
fn a_leader_that_dies_is_followed() {
    let kitchen = Kitchen::new();
    // The keeper is the parent of the command, and is killed as a machine that fails.
    kitchen.program(
        "send-mail-as-leader",
        "echo \"$NAME $PPID\" >> leaders; exec 8>>alive; flock -n 8 || echo two >> clash; sleep 1000",
    );
    let lines = recipe("A leader\n").replace("--ttl 15s", "--ttl 3s");
    let candidate = |name: &str| {
        let mut candidate = kitchen.lines(&lines, &[]);
        candidate.env("NAME", name);
        Running::new(candidate)
    };
    let first = candidate("first");
    until_written(&kitchen.fixture.path("leaders"));
    let second = candidate("second");
    let lock = "default/leader/mailer";
    until("the second waits", || {
        (kitchen.fixture.count(lock, "waiterCount") == 1).then_some(())
    });
    let leaders = kitchen.written("leaders");
    let keeper = leaders
        .trim_end()
        .strip_prefix("first ")
        .expect("the first leads")
        .to_owned();
    drop(first);
    common::signals::send("KILL", &[keeper.parse().expect("a process")]);
    until("the second leads", || {
        kitchen.written("leaders").contains("second").then_some(())
    });
    assert_eq!(kitchen.written("clash"), "", "both led at once");
    let leaders = kitchen.written("leaders");
    let keeper = leaders.lines().last().and_then(|line| line.split(' ').nth(1));
    drop(second);
    common::signals::send("TERM", &[keeper.and_then(|id| id.parse().ok()).expect("a process")]);
}

#[test]
fn a_late_writer_is_refused_by_its_token() {
    let kitchen = Kitchen::new();
    kitchen.program("write-report", &recipe("A resource that checks"));
    let write = |token: &str, text: &str| {
        let mut lines = kitchen.lines(&format!("echo {text} | write-report"), &[]);
        lines.env("FENCEPOST_TOKEN", token);
        lines.output().expect("it runs").status.code()
    };
    let late = kitchen.fixture.held("default/report", "sleeper");
    let late = late["fencingToken"].as_str().expect("a token");
    kitchen.fixture.said(&["force-release", "default/report", late]);
    let line = "fencepost lock default/report -- sh -c 'echo fresh | write-report'";
    assert_eq!(kitchen.begin(line, &[]).end(), Some(0));
    assert_eq!(write(late, "stale"), Some(1), "the sleeper wakes up");
    assert_eq!(kitchen.written("report"), "fresh\n");
    let fresh = kitchen.written("report.token");
    assert_eq!(write(fresh.trim(), "again"), Some(0), "a holder may write twice");
    assert_eq!(kitchen.written("report"), "again\n");
    kitchen.lines(": >report.token", &[]).status().expect("it runs");
    assert_eq!(write(fresh.trim(), "unknown"), Some(1), "the highest token is unknown");
    assert_eq!(kitchen.written("report"), "again\n");
}

#[test]
fn no_more_expensive_jobs_run_at_once_than_the_semaphore_allows() {
    let kitchen = Kitchen::new();
    kitchen.program(
        "transcode",
        "echo + >> runs; sleep 0.5; echo - >> runs; echo \"$1\" >> done",
    );
    let lines = recipe("A semaphore");
    let numbers: Vec<String> = (0..8).map(|number| format!("film {number}")).collect();
    let mut jobs: Vec<Running> = numbers.iter().map(|name| kitchen.begin(&lines, &[name])).collect();
    for job in &mut jobs {
        assert_eq!(job.end(), Some(0));
    }
    let most = most_at_once(&kitchen.written("runs"));
    assert!((2..=3).contains(&most), "{most} at once");
    let done = kitchen.written("done");
    let mut done: Vec<&str> = done.lines().collect();
    done.sort_unstable();
    assert_eq!(done, numbers);
    // Nobody is left.
    until("all is free", || {
        (kitchen.fixture.count("default/transcode", "holderCount") == 0).then_some(())
    });
}
