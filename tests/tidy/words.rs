//! What no file says.

use crate::source::{Source, files_in, read, root};

/// Spelled in two halves, so that this file does not say them.
const LEFTOVERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
    concat!("#[", "ignore"),
    concat!("/wo", "rk/"),
    concat!("CON", "TRACT"),
    concat!("DES", "IGN"),
];

/// The files that people read: all but what is built, and the licence and the lock file, which
/// others wrote.
fn all_files() -> Vec<String> {
    let folders = [
        "src", "core", "tests", "examples", "benches", "proto", "scripts", ".ci", "helm",
    ];
    let there = folders.iter().filter(|folder| root().join(folder).is_dir());
    let documents = crate::documents::documents();
    let own = ["Cargo.toml", "Dockerfile", "build.rs"].map(str::to_owned);
    there
        .flat_map(|folder| files_in(folder))
        .chain(documents)
        .chain(own)
        .chain(files_in("clients/rust/src"))
        .filter(|path| !is_built(path))
        .collect()
}

/// The folders of `examples/` that its tools fill, and that git ignores.
const BUILT: &[&str] = &[
    ".mypy_cache",
    ".venv",
    "__pycache__",
    "bin",
    "dist",
    "fencepost",
    "gen",
    "node_modules",
    "target",
];

fn is_built(path: &str) -> bool {
    let is_folder = |segment: &str| BUILT.contains(&segment);
    path.starts_with("examples/") && (path.split('/').any(is_folder) || path.ends_with(".db"))
}

#[test]
fn nothing_is_left_to_be_done() {
    let mut found = Vec::new();
    for path in all_files() {
        for (number, line) in read(&path).lines().enumerate() {
            let words = LEFTOVERS.iter().filter(|word| line.contains(**word));
            found.extend(words.map(|word| format!("{path}:{}: {word}", number + 1)));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The longest file of the product, in lines: past this a module has a joint to be cut at.
const LONGEST: usize = 450;

#[test]
fn no_file_is_too_long_to_read() {
    let lengths = ["src", "core/src", "clients/rust/src"]
        .into_iter()
        .flat_map(files_in)
        .map(|path| (read(&path).lines().count(), path));
    let too_long: Vec<_> = lengths.filter(|(lines, _)| *lines > LONGEST).collect();
    assert!(too_long.is_empty(), "{too_long:?}");
}

/// Words that were replaced, and what is said instead.
const REPLACED: &[(&[&str], &[&str])] = &[
    (&["take_up", "TAKE_UP"], &["promote"]),
    (&["Departure", "Leaver"], &["ReleaseOutcome", "OwnedReleaseTarget"]),
    (&["Patience"], &["WaitPolicy"]),
    (&["Offers"], &["Capabilities"]),
    (
        &["Wakes", "Mail", "Post"],
        &["Notification", "WaiterMessage", "NotificationSender"],
    ),
    (
        &["Room", "Course", "Desk"],
        &["NamespaceState", "AcquireCall", "TxnContext"],
    ),
    (&["Scene", "Scenes"], &["LockState", "LockTable"]),
    (&["Along", "Riders"], &["Appends"]),
    (&["Pulse"], &["LeaseKeepAlive"]),
    (&["Survey", "Tried", "Ticket"], &["Snapshot", "Retry", "SessionEpoch"]),
    (&["Arrivals"], &["CallQueue"]),
    (&["Voters", "InTheWay"], &["Nodes", "Conflict"]),
    (
        &["Strangers", "Greeting", "Told"],
        &["UnauthenticatedConnections", "FirstByteTimeout", "LogThrottle"],
    ),
    (
        &["Handover", "Handing", "Stay", "Dialogue"],
        &["GrantDelivery", "GrantBody", "CallPermit", "BidiStream"],
    ),
    (&["Warden", "warden", "Duty"], &["Watchdog", "KillDeadline"]),
    (&["TakenBack", "is_passing"], &["Undone", "is_transient"]),
    (&["FirstStart", "crowded_out"], &["OnEmptyStore", "evicted"]),
    (&["AdmissionTicket"], &["CallPosition"]),
    (&["SlotPool", "RequestSlot"], &["KeySuffixPool", "RequestWrite"]),
    (&["Epoch", "Epochs"], &["FencedConnection", "FencedConnections"]),
    (&["OverLimit", "LeaseEnd"], &["QuotaExceeded", "LeaseEnded"]),
    (
        &["Unproven", "ProvenIdentity"],
        &["AuthenticationFailure", "AuthenticatedIdentity"],
    ),
    (&["Facts", "News", "Extras"], &["ServerInfo", "LeaderChange", "EndOps"]),
    (
        &["Reach", "Spare", "Mixed"],
        &["LockScope", "SpareLease", "GrantablePrefix"],
    ),
    (
        &["glimpse", "span_s", "rotate_bucket"],
        &["read_first_claims", "granted_ttl_s", "replace_history_lease"],
    ),
    (
        &["unasked", "unmarked", "judged_at"],
        &["request_is_new", "not_cancelled", "decided_at"],
    ),
    (
        &["semaphores_up_to", "shown_claim"],
        &["semaphores_complete_to", "claim_in_key"],
    ),
    (&["Near", "Far"], &["OwnBatch", "NextBatch"]),
    (
        &["doubt", "in_doubt", "unlisted"],
        &["mark_unknown", "unknown", "missing_from_view"],
    ),
    (
        &["Surroundings", "ChargeTo", "Charged"],
        &["CallContext", "ByteCounters", "CountedData"],
    ),
    (&["minted", "Looked"], &["new_tokens", "Rechecked"]),
    (
        &["placing", "InEffect", "held_up_until"],
        &["sequencing", "Enqueued", "delayed_until"],
    ),
    (
        &["stand", "stand_by", "stand_nowhere"],
        &["promote_from_view", "promote_from_snapshot", "outcome_without_claim"],
    ),
    (&["Away", "Unsent"], &["Unavailable", "NotSent"]),
    (&["Proof", "Proving", "prove_by"], &["Credentials", "set_credentials"]),
    (&["Company"], &["BatchClass", "QuorumMembers"]),
    (&["Contending"], &["AttemptPermit"]),
    (&["UnderWay", "Sending"], &["InFlight", "InFlightGuard"]),
    (&["first_start"], &["on_empty_store"]),
    (&["fencepost_waiting"], &["fencepost_acquires_waiting"]),
    (
        &["hurry", "spill", "entangled"],
        &["shorten_deadline", "rotate", "not_poolable"],
    ),
    (&["MOMENT"], &["MAX_DELAY"]),
];

#[test]
fn words_that_were_replaced_do_not_come_back() {
    let words: Vec<&str> = REPLACED.iter().flat_map(|(words, _)| *words).copied().collect();
    let old = |text: &str| {
        let identifiers = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let mut old = identifiers.filter(|identifier| words.contains(identifier));
        old.next().map(str::to_owned)
    };
    let mut found = Vec::new();
    for Source { path, code } in Source::all() {
        let lines = code.lines().enumerate();
        let old = lines.filter_map(|(number, line)| Some((number + 1, old(line)?)));
        found.extend(old.map(|(number, word)| format!("{path}:{number}: {word}")));
    }
    // The changelog names what was renamed.
    let documents = crate::documents::documents();
    for path in documents.iter().filter(|path| !path.ends_with("CHANGELOG.md")) {
        let shown = crate::documents::code_words(path).into_iter();
        found.extend(shown.filter_map(|text| Some(format!("{path}: {}", old(&text)?))));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn what_is_said_instead_was_not_replaced_itself() {
    let words = || REPLACED.iter().flat_map(|(words, _)| *words);
    assert!(words().count() > 80);
    let instead = REPLACED.iter().flat_map(|(_, instead)| *instead);
    let again: Vec<_> = instead.filter(|word| words().any(|old| old == *word)).collect();
    assert!(again.is_empty(), "{again:?}");
}
