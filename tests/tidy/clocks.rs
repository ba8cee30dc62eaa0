//! Where a clock is read. Only a backend's own clock decides about leases; whoever else reads one
//! measures how long something took, or ends a caller's own wait.

use std::collections::BTreeSet;

use crate::source::{Source, place, tokens};

/// Who reads which clock, and why.
const READERS: &[(&str, Clock, &str)] = &[
    (
        "clients/rust/src/clock.rs",
        Clock::Running,
        "is the clock since boot of those below",
    ),
    (
        "src/stores/recorded.rs",
        Clock::Running,
        "ends the quarantine of a namespace that has moved",
    ),
    (
        "src/cli/direct.rs",
        Clock::Running,
        "shows how long a quarantine lasts, and ends the wait for a file",
    ),
    (
        "src/cli/server.rs",
        Clock::Running,
        "takes off a wait what it has waited for a file",
    ),
    (
        "src/cli/leases.rs",
        Clock::Running,
        "notes when a wait began that may wait for a file first",
    ),
    ("src/cli/config.rs", Clock::Running, "shows how long a quarantine lasts"),
    (
        "src/api/several.rs",
        Clock::Running,
        "ends the wait of a call for several locks, and times when those that it holds are renewed",
    ),
    (
        "core/src/elections.rs",
        Clock::Running,
        "ends the read of a leader while the store is unavailable",
    ),
    (
        "src/api/lease_keeper.rs",
        Clock::Running,
        "times when a client is asked for its next beat, and when the store is asked about a lease",
    ),
    (
        "src/api.rs",
        Clock::Running,
        "limits how long the places of waits are kept that the drain ends",
    ),
    (
        "src/api/session.rs",
        Clock::Running,
        "asks a client again before a proxy takes its stream for idle",
    ),
    (
        "src/api/session/adding.rs",
        Clock::Running,
        "counts the waits of commands from their arrival",
    ),
    (
        "core/src/locks/grant_log.rs",
        Clock::Running,
        "times how long a lease was held, for the log, and when the store is asked whether it has expired",
    ),
    (
        "core/src/locks/undo.rs",
        Clock::Running,
        "limits how long the place of a wait is kept that the server ended",
    ),
    (
        "core/src/locks/session_stream.rs",
        Clock::Running,
        "notes until when the places of a stream that broke off are kept",
    ),
    (
        "src/api/session/execute.rs",
        Clock::Running,
        "notes from when on an Acquire waits, and ends the waits of those that have not started",
    ),
    (
        "src/api/session/start.rs",
        Clock::Running,
        "notes when a command to renew a lease was sent",
    ),
    (
        "core/src/backend/clock.rs",
        Clock::Wall,
        "scales tokens and dates what people see; decides nothing about leases",
    ),
    (
        "core/src/backend/local_clock.rs",
        Clock::Running,
        "the store's clock: it decides about leases",
    ),
    (
        "core/src/backend/local_clock.rs",
        Clock::Wall,
        "scales tokens and dates what people see; decides nothing",
    ),
    (
        "core/src/backend/embedded.rs",
        Clock::Running,
        "stamps Grant::waited when a step is sent",
    ),
    (
        "src/backend/redis/index.rs",
        Clock::Running,
        "forgets which names were added lately",
    ),
    (
        "src/backend/redis_server/marker.rs",
        Clock::Running,
        "times a quarantine",
    ),
    (
        "src/backend/redis_server/node.rs",
        Clock::Running,
        "says how long a quarantine still lasts",
    ),
    (
        "src/backend/etcd/cluster/client.rs",
        Clock::Running,
        "how long a read was asked of one member after another",
    ),
    (
        "src/backend/etcd/tree/session.rs",
        Clock::Running,
        "ends a connection whose session is not confirmed",
    ),
    (
        "src/auth/clock.rs",
        Clock::Wall,
        "says whether a signed token or a certificate is still good; decides nothing about leases",
    ),
    (
        "src/api/log_throttle.rs",
        Clock::Running,
        "tells the log of closed connections now and then",
    ),
    (
        "src/api/transport/calls.rs",
        Clock::Running,
        "lets other connections run after a millisecond",
    ),
    (
        "src/reload.rs",
        Clock::Running,
        "reads a file again that could not be read some time ago",
    ),
    (
        "src/api/large_reads.rs",
        Clock::Running,
        "bounds how long a read waits for its turn and for the store",
    ),
    (
        "core/src/locks/local_waiters.rs",
        Clock::Running,
        "notes when the store confirmed the end of a wait, for another one whose end it did not confirm",
    ),
    (
        "src/monitor.rs",
        Clock::Running,
        "lets a connection have its time before it is given up for another, and says how long a quarantine still lasts",
    ),
    ("core/src/quota.rs", Clock::Running, "times rates"),
    (
        "core/src/quota/acquire_quota.rs",
        Clock::Running,
        "notes how long a lease counts against a limit",
    ),
    (
        "core/src/ledger.rs",
        Clock::Running,
        "forgets leases that have expired; the store decides whether they live",
    ),
    (
        "core/src/backend/record.rs",
        Clock::Running,
        "counts the store's clock on between its answers, for commits that the store checks",
    ),
    (
        "core/src/backend/record/draft.rs",
        Clock::Running,
        "stamps Grant::waited when a step is sent, and counts the store's clock on for a commit that the store checks",
    ),
    (
        "core/src/backend/record/local.rs",
        Clock::Running,
        "looks at a lock when a lease on it ends",
    ),
    (
        "core/src/backend/record/locks.rs",
        Clock::Running,
        "counts the store's clock on between its answers, and reads a record again that is not fresh",
    ),
    (
        "core/src/backend/record/tasks.rs",
        Clock::Running,
        "times beats and looks",
    ),
    (
        "core/src/backend/record/verb.rs",
        Clock::Running,
        "ends the wait for a store that does not answer",
    ),
    (
        "core/src/backend/record/watching.rs",
        Clock::Running,
        "reads the state again if a change is missing for too long",
    ),
    (
        "core/src/backend/record/worker.rs",
        Clock::Running,
        "counts the store's clock on between its answers, for commits that the store checks",
    ),
    (
        "core/src/backend/record/worker/settle.rs",
        Clock::Running,
        "fails the calls that have waited for long behind a commit of unknown outcome",
    ),
    (
        "src/backend/redlock/clock.rs",
        Clock::Running,
        "counts the nodes' clocks on between their answers",
    ),
    (
        "src/backend/redlock/health.rs",
        Clock::Running,
        "says in the log how long a quarantine still lasts",
    ),
    (
        "src/backend/redlock/attempt.rs",
        Clock::Running,
        "a majority that comes after the lease's time is none",
    ),
    (
        "src/backend/redlock/release.rs",
        Clock::Running,
        "waits no longer for the slow nodes than for the majority",
    ),
    (
        "src/backend/redlock/names.rs",
        Clock::Running,
        "waits no longer for the slow nodes than for the majority",
    ),
    (
        "src/backend/redlock/renew.rs",
        Clock::Running,
        "waits no longer for the slow nodes than for the majority",
    ),
    (
        "src/backend/redlock/nodes.rs",
        Clock::Running,
        "stamps the sending of a step, ends the wait for slow nodes",
    ),
    (
        "src/backend/redlock/waiting.rs",
        Clock::Running,
        "tells the first waiter when a holder's time is over",
    ),
    (
        "src/backend/redlock/watching.rs",
        Clock::Running,
        "times the looks of one who watches",
    ),
    (
        "src/backend/redis_server/sentinel.rs",
        Clock::Running,
        "gives up a connection that owes an answer for too long",
    ),
    (
        "src/backend/redlock/quorum_member.rs",
        Clock::Running,
        "ends the wait for the other servers of a first start",
    ),
    (
        "core/src/backend/tree/fenced_connection.rs",
        Clock::Running,
        "how long a step has waited for a connection",
    ),
    (
        "core/src/backend/tree/group_commit.rs",
        Clock::Running,
        "stamps Grant::waited when a step is sent",
    ),
    (
        "core/src/backend/tree/group_commit/batch.rs",
        Clock::Running,
        "whether a patient append still waits",
    ),
    (
        "core/src/backend/tree/table.rs",
        Clock::Running,
        "lists locks again from time to time, because a watch may lose an event",
    ),
    (
        "core/src/backend/tree/table/state.rs",
        Clock::Running,
        "notes when a lock was listed",
    ),
    (
        "core/src/backend/tree/calls.rs",
        Clock::Running,
        "forgets the calls that ended long ago",
    ),
    (
        "core/src/backend/tree/history.rs",
        Clock::Running,
        "forgets the ends of calls after their time",
    ),
    (
        "core/src/backend/tree/ops/clean_up.rs",
        Clock::Running,
        "deletes nodes that nobody has used for long",
    ),
    (
        "src/backend/zookeeper/client/session.rs",
        Clock::Running,
        "gives up a session that the servers have ended",
    ),
    (
        "src/backend/zookeeper/client/connection.rs",
        Clock::Running,
        "gives up a server that does not answer",
    ),
    (
        "src/backend/postgres/notices.rs",
        Clock::Running,
        "times the log lines about warnings",
    ),
    ("src/backend/sql/health.rs", Clock::Running, "times a quarantine"),
    ("src/backend/sql/known.rs", Clock::Running, "times a quarantine"),
    (
        "src/backend/sql/written.rs",
        Clock::Running,
        "forgets what was written minutes ago",
    ),
    (
        "src/backend/sql/pool.rs",
        Clock::Running,
        "gives up statements that are not answered",
    ),
    ("core/src/locks.rs", Clock::Running, "notes when a call arrived"),
    (
        "core/src/locks/acquire.rs",
        Clock::Running,
        "ends the caller's own wait, and the riding out of a store that is away",
    ),
    (
        "core/src/locks/outage.rs",
        Clock::Running,
        "notes since when a store is away, and ends the riding out",
    ),
    (
        "core/src/backend/health_news.rs",
        Clock::Running,
        "tells the log of a changing health now and then",
    ),
    (
        "core/src/supervisor.rs",
        Clock::Running,
        "starts a task that panics again and again ever later",
    ),
    (
        "src/telemetry/log_queue.rs",
        Clock::Running,
        "bounds how long the end of the process waits for the log",
    ),
    (
        "core/src/locks/outage/health_log.rs",
        Clock::Running,
        "says how long a quarantine still lasts",
    ),
    (
        "core/src/locks/watching.rs",
        Clock::Running,
        "ends a watch whose store does not show the lock",
    ),
    (
        "clients/rust/src/calls.rs",
        Clock::Running,
        "notes when locks were asked for, and ends the caller's own wait and the repeating of a call that nobody answers",
    ),
    (
        "clients/rust/src/credentials.rs",
        Clock::Running,
        "reads a bearer token again now and then",
    ),
    (
        "clients/rust/src/guard.rs",
        Clock::Running,
        "tells a client until when it may count on its lease",
    ),
    (
        "clients/rust/src/session.rs",
        Clock::Running,
        "asks for a sign of life before a proxy cuts the silent stream",
    ),
    (
        "clients/rust/src/session/shared.rs",
        Clock::Running,
        "does not open a session again soon that was refused",
    ),
    (
        "clients/rust/src/keep_alive/task.rs",
        Clock::Running,
        "renews in time, and ends a client's trust in a lease that was not renewed",
    ),
    ("src/cli/bench.rs", Clock::Running, "names a run by when it began"),
    (
        "src/cli/bench/load.rs",
        Clock::Running,
        "measures calls, and ends a slice of a measurement",
    ),
    (
        "src/cli/lock.rs",
        Clock::Running,
        "ends a command before the lease that its client counts on",
    ),
    (
        "src/cli/lock/at_least.rs",
        Clock::Running,
        "ends the time for which a lock stays held after its command",
    ),
    (
        "src/cli/lock/watchdog.rs",
        Clock::Running,
        "ends a command whose keeper does not",
    ),
    (
        "src/cli/progress_line.rs",
        Clock::Running,
        "shows how long somebody waits",
    ),
    (
        "src/cli/status.rs",
        Clock::Running,
        "shows how long a server took to answer",
    ),
    (
        "src/cli/watch.rs",
        Clock::Running,
        "ends a watch whose lists have failed for a minute",
    ),
    (
        "src/cli/top.rs",
        Clock::Running,
        "pauses in proportion to the time that a look took",
    ),
    (
        "src/cli/top/sample.rs",
        Clock::Wall,
        "shows for how long holders have held",
    ),
    ("src/api/request_log.rs", Clock::Running, "measures a call for the log"),
    (
        "src/api/call_metrics.rs",
        Clock::Running,
        "measures a call for the metrics",
    ),
    (
        "src/metrics/families.rs",
        Clock::Running,
        "notes when the configuration was applied",
    ),
    (
        "src/metrics.rs",
        Clock::Running,
        "shows how old the configuration is, and how long a quarantine still lasts",
    ),
    (
        "core/src/measured.rs",
        Clock::Running,
        "measures steps; decides nothing",
    ),
    (
        "src/metrics/operation_series.rs",
        Clock::Running,
        "measures hand-offs; decides nothing",
    ),
    (
        "src/api/convert/answer.rs",
        Clock::Running,
        "shows how long a quarantine still lasts",
    ),
];

/// The kinds of clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Clock {
    /// It runs on evenly: `Instant`, and the machine's time since boot.
    Running,
    /// It is set by people and by the network: `SystemTime`.
    Wall,
}

/// The readings of a file, each with its line.
fn readings(source: &Source) -> Vec<(Clock, usize)> {
    let tokens = tokens(&source.code);
    let texts: Vec<&str> = tokens.iter().map(|token| token.text).collect();
    let clock = |at: usize| match texts[at..] {
        ["SystemTime" | "Utc" | "Local", "::", "now", ..] => Some(Clock::Wall),
        ["Instant", "::", "now", ..] | [".", "elapsed", ..] | ["clock_gettime" | "since_boot", "(", ..] => {
            Some(Clock::Running)
        }
        _ => None,
    };
    (0..tokens.len())
        .filter_map(|at| Some((clock(at)?, tokens[at].line)))
        .collect()
}

#[test]
fn only_those_with_a_reason_read_a_clock() {
    let mut wrong = Vec::new();
    let mut met = BTreeSet::new();
    for source in Source::product() {
        for (clock, line) in readings(&source) {
            let allowed = READERS
                .iter()
                .position(|(path, kind, _)| *path == source.path && *kind == clock);
            match allowed {
                Some(entry) => drop(met.insert(entry)),
                None => wrong.push(place(&source, line, format_args!("reads the clock {clock:?}"))),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(
        met,
        (0..READERS.len()).collect(),
        "an entry that nothing needs any more"
    );
}

#[test]
fn no_wall_clock_is_read_but_for_backends_signed_tokens_and_what_is_shown() {
    let wall = READERS.iter().filter(|(_, clock, _)| *clock == Clock::Wall);
    for (path, _, reason) in wall {
        let of_backend = path.contains("src/backend/") && path.ends_with("clock.rs");
        // Signed tokens carry times of day, which nothing else can be compared with; so does what `top` shows.
        let compares = ["src/auth/clock.rs", "src/cli/top/sample.rs"].contains(path);
        assert!(of_backend || compares, "{path} ({reason})");
    }
}
