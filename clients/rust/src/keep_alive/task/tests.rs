use std::pin::pin;

use futures::future::ready;
use tokio::net::TcpListener;

use super::*;
use crate::Credentials;
use crate::connections::Connections;
use crate::lease_term::Loss;

const TTL: Duration = Duration::from_secs(60);

/// A task, and the sender of its changes. Its server does not answer.
async fn task() -> (KeepAliveTask, mpsc::UnboundedSender<Change>, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let addresses = [address.parse().expect("an address")];
    let connections = Connections::open(&addresses, Credentials::default()).await;
    let calls = Arc::new(Calls::over(connections.expect("it accepts")));
    let (changes, receiver) = mpsc::unbounded_channel();
    (KeepAliveTask::new(calls, receiver), changes, listener)
}

/// An addition of a guard, and what the guard shows.
fn addition(guard: u64, term: LeaseTerm) -> (Change, watch::Receiver<LeaseState>) {
    let (state, shown) = watch::channel(LeaseState::Held(term));
    let change = Change::Add {
        lease_id: Arc::from(format!("lease-{guard}")),
        guard,
        term,
        state: Arc::new(state),
    };
    (change, shown)
}

#[tokio::test]
async fn many_changes_delay_neither_answers_nor_each_other() {
    let (mut task, changes, _listener) = task().await;
    let now = clock::since_boot();
    let (first, shown) = addition(0, LeaseTerm::granted(now, TTL));
    task.change(first);
    let renewed = Renewal {
        lease_id: Arc::from("lease-0"),
        sent: now,
        result: Ok(TTL * 2),
    };
    task.renewals.push(Box::pin(ready(renewed)));
    for guard in 1..1_000 {
        let (change, _) = addition(guard, LeaseTerm::granted(now, TTL));
        changes.send(change).expect("a task");
    }
    // It is over as soon as the task has seen it.
    let (last, over) = addition(1_000, LeaseTerm::granted(now, Duration::ZERO));
    changes.send(last).expect("a task");
    let mut run = pin!(task.run());
    // One poll of the task: it yields when its budget of the runtime is spent.
    assert!(futures::poll!(&mut run).is_pending());
    let held = LeaseState::Held(LeaseTerm::granted(now, TTL).renewed(now, TTL * 2));
    assert_eq!(*shown.borrow(), held, "the answer was handled");
    assert_eq!(
        *over.borrow(),
        LeaseState::Lost(Loss::Unrenewed),
        "all changes were applied"
    );
}
