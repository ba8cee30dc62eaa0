//! The recipes that take several programs, run as they stand in `RECIPES.md`.

use std::fs;
use std::time::Duration;

use crate::cli::program::{Running, until_written};
use crate::cli::recipes::{Kitchen, most_at_once, recipe, recipe_of};
use crate::cli::server::until;

/// Returns when so many wait for a lock.
fn until_waiting(kitchen: &Kitchen, lock: &str, waiters: u64) {
    until("they wait", || {
        (kitchen.fixture.count(lock, "waiterCount") == waiters).then_some(())
    });
}

#[test]
fn a_daily_job_runs_once_a_day() {
    let kitchen = Kitchen::new();
    kitchen.program("make-reports", "echo made >> runs");
    kitchen.program("date", "cat today");
    let lines = recipe("A job once a day");
    for (day, runs) in [("2026-11-23", 1), ("2026-11-24", 2)] {
        fs::write(kitchen.fixture.path("today"), day).expect("a file");
        for _ in 0..2 {
            let mut hosts: Vec<Running> = (0..2).map(|_| kitchen.begin(&lines, &[])).collect();
            let codes: Vec<_> = hosts.iter_mut().map(Running::end).collect();
            assert_eq!(codes, [Some(0); 2]);
            assert_eq!(kitchen.written("runs"), "made\n".repeat(runs), "{day}");
        }
        let lock = format!("default/daily/reports/{day}");
        let left = kitchen.fixture.json(&["get", &lock])["holders"][0]["remainingTtl"].clone();
        let seconds: f64 = left
            .as_str()
            .expect("a time")
            .trim_end_matches('s')
            .parse()
            .expect("a number");
        assert!(seconds > 86_000.0, "it is held for the day: {left}");
    }
}

#[test]
fn a_leader_is_found_by_its_observers() {
    let kitchen = Kitchen::new();
    let [lead, observe] = recipe_of("A leader that others find");
    kitchen.program(
        "serve-cache",
        "echo $ADDRESS >> served; while [ ! -e stop-$ADDRESS ]; do sleep 0.05; done",
    );
    kitchen.program("connect-to", "echo \"$1\" >> seen-$OBSERVER");
    let observers = ["one", "two"].map(|name| {
        let mut observer = kitchen.lines(&observe, &[]);
        observer.env("OBSERVER", name);
        let observer = Running::new(observer);
        until_written(&kitchen.fixture.path(&format!("seen-{name}")));
        observer
    });
    let candidate = |address: &str| {
        let mut candidate = kitchen.lines(&lead, &[]);
        candidate.env("ADDRESS", address);
        Running::new(candidate)
    };
    let mut first = candidate("h1:80");
    until_written(&kitchen.fixture.path("served"));
    let mut second = candidate("h2:80");
    until_waiting(&kitchen, "default/leader/cache", 1);
    for (address, leader) in [("h1:80", &mut first), ("h2:80", &mut second)] {
        until("it serves", || {
            kitchen.written("served").contains(address).then_some(())
        });
        fs::write(kitchen.fixture.path(&format!("stop-{address}")), "").expect("a file");
        assert_eq!(leader.end(), Some(0));
    }
    for name in ["one", "two"] {
        let seen = || kitchen.written(&format!("seen-{name}"));
        until("nobody leads any more", || {
            (seen().contains("h2:80") && seen().ends_with("nobody leads\n")).then_some(())
        });
        let seen = seen();
        let (one, two) = (seen.find("h1:80"), seen.find("h2:80"));
        assert!(one.is_some() && one < two, "{seen}");
    }
    drop(observers);
}

/// A write that an earlier holder sent arrives before the first one of the next holder.
#[test]
fn a_holder_lets_earlier_writes_arrive_before_its_own() {
    let kitchen = Kitchen::new();
    // What escapes the process group is as a request on its way.
    kitchen.program(
        "print-all",
        "setsid sh -c \"sleep 0.5; echo late $NAME >> printed\" & echo $NAME >> printed; sleep 1000",
    );
    let lines = recipe("A resource that cannot compare").replace("sleep 15", "sleep 1");
    assert!(lines.contains("sleep 1 "), "{lines}");
    let holder = |name: &str| {
        let mut holder = kitchen.lines(&lines, &[]);
        holder.env("NAME", name);
        Running::new(holder)
    };
    let mut first = holder("first");
    until_written(&kitchen.fixture.path("printed"));
    let second = holder("second");
    let lock = "default/printer";
    until_waiting(&kitchen, lock, 1);
    let shown = kitchen.fixture.json(&["get", lock]);
    let token = shown["holders"][0]["fencingToken"].as_str().expect("a token");
    kitchen.fixture.said(&["force-release", lock, token]);
    assert_eq!(first.end(), Some(122));
    until("the second prints", || {
        kitchen.written("printed").contains("late second").then_some(())
    });
    assert_eq!(kitchen.written("printed"), "first\nlate first\nsecond\nlate second\n");
    second.signal("TERM");
}

#[test]
fn transfers_in_both_directions_lose_no_money() {
    let kitchen = Kitchen::new();
    for account in ["a", "b"] {
        fs::write(kitchen.fixture.path(account), "100").expect("a file");
    }
    kitchen.program(
        "transfer",
        "from=$(cat $1); to=$(cat $2); sleep 0.05; echo $((from - $3)) > $1; echo $((to + $3)) > $2",
    );
    let lines = recipe("A transfer");
    let transfer = |number: usize| match number % 2 {
        0 => kitchen.begin(&lines, &["a", "b", "3"]),
        _ => kitchen.begin(&lines, &["b", "a", "1"]),
    };
    let mut transfers: Vec<Running> = (0..12).map(transfer).collect();
    for transfer in &mut transfers {
        assert_eq!(transfer.end(), Some(0));
    }
    assert_eq!(["a", "b"].map(|account| kitchen.written(account)), ["88\n", "112\n"]);
}

#[test]
fn who_waits_for_all_workers_goes_on_when_the_last_is_done() {
    let kitchen = Kitchen::new();
    kitchen.program("work", "sleep 0.$1; echo $1 >> done");
    kitchen.program("publish", "cp done published");
    let mut batch = kitchen.begin(&recipe("Wait until all workers"), &[]);
    assert_eq!(batch.end(), Some(0));
    let published = kitchen.written("published");
    let mut published: Vec<&str> = published.lines().collect();
    published.sort_unstable();
    assert_eq!(published, ["1", "2", "3"]);
}

#[test]
fn all_start_when_the_starter_is_ready() {
    let kitchen = Kitchen::new();
    let [start, run] = recipe_of("Start together");
    kitchen.program("prepare", "echo > prepared; while [ ! -e go ]; do sleep 0.05; done");
    kitchen.program("run-load", "echo + >> runs; sleep 0.7; echo - >> runs");
    let mut starter = kitchen.begin(&start, &[]);
    until_written(&kitchen.fixture.path("prepared"));
    let mut others: Vec<Running> = (0..3).map(|_| kitchen.begin(&run, &[])).collect();
    until_waiting(&kitchen, "default/start/load-test", 3);
    assert!(!kitchen.fixture.path("runs").exists(), "nobody runs before");
    fs::write(kitchen.fixture.path("go"), "").expect("a file");
    assert_eq!(starter.end(), Some(0));
    for other in &mut others {
        assert_eq!(other.end(), Some(0));
    }
    assert_eq!(most_at_once(&kitchen.written("runs")), 3);
}

#[test]
fn calls_begin_at_most_once_a_second() {
    /// How much earlier than a second after the call before a call may be noted on a busy machine.
    const SLACK: Duration = Duration::from_millis(150);
    let kitchen = Kitchen::new();
    kitchen.program("search", "date +%s.%N >> calls; echo \"$1\" >> searched");
    let lines = recipe("One call per second");
    let mut calls: Vec<Running> = ["x", "y", "z"].map(|what| kitchen.begin(&lines, &[what])).into();
    for call in &mut calls {
        assert_eq!(call.end(), Some(0));
    }
    let times = kitchen.written("calls");
    let mut times: Vec<f64> = times.lines().map(|line| line.parse().expect("a time")).collect();
    times.sort_by(f64::total_cmp);
    assert_eq!(times.len(), 3);
    for pair in times.windows(2) {
        assert!(pair[1] - pair[0] > 1.0 - SLACK.as_secs_f64(), "{times:?}");
    }
}
