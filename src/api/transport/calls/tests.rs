use std::future::{pending, poll_fn};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::yield_now;

use super::*;

/// A call that sends its number once and then waits for ever.
fn numbered(started: &UnboundedSender<usize>, number: usize) -> impl Future<Output = ()> + Send + 'static {
    let started = started.clone();
    async move {
        started.send(number).expect("the receiver is open");
        pending::<()>().await;
    }
}

async fn start_all(calls: &mut Calls) {
    for _ in 0..64 {
        poll_fn(|cx| {
            calls.start(cx);
            Poll::Ready(())
        })
        .await;
    }
}

fn all(mut started: UnboundedReceiver<usize>) -> Vec<usize> {
    std::iter::from_fn(|| started.try_recv().ok()).collect()
}

// G11
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_start_in_the_order_in_which_they_arrived() {
    let (sender, started) = unbounded_channel();
    let mut calls = Calls::default();
    let many = 2_000;
    for number in 0..many {
        calls.executor().execute(numbered(&sender, number));
    }
    start_all(&mut calls).await;
    assert_eq!(all(started), (0..many).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_connection_whose_calls_take_long_yields_after_each() {
    let mut calls = Calls::default();
    for _ in 0..3 {
        calls.executor().execute(async { std::thread::sleep(START_LIMIT) });
    }
    let left = |calls: &Calls| calls.executor.with(|queued| queued.calls.len());
    let (woken, mut context) = noting_context();
    for expected in [2, 1, 0] {
        assert!(!calls.start(&mut context));
        assert_eq!(left(&calls), expected);
        assert!(
            woken.swap(false, std::sync::atomic::Ordering::SeqCst),
            "it is woken for the rest"
        );
    }
    assert!(calls.start(&mut context));
}

/// A context, and whether its waker was used.
fn noting_context() -> (Arc<std::sync::atomic::AtomicBool>, Context<'static>) {
    struct Flag(Arc<std::sync::atomic::AtomicBool>);
    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let woken = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let waker = Box::leak(Box::new(Waker::from(Arc::new(Flag(woken.clone())))));
    (woken, Context::from_waker(waker))
}

#[tokio::test]
async fn calls_with_late_messages_continue_in_the_order_of_their_messages() {
    let (sender, started) = unbounded_channel();
    let mut calls = Calls::default();
    let mut messages = Vec::new();
    for number in 0..100 {
        let (message, received) = tokio::sync::oneshot::channel::<()>();
        messages.push(message);
        let then = numbered(&sender, number);
        calls.executor().execute(async move {
            request::until_message(received).await;
            then.await;
        });
    }
    start_all(&mut calls).await;
    let order: Vec<usize> = (0..100).map(|number| (number * 37) % 100).collect();
    let mut messages: Vec<_> = messages.into_iter().map(Some).collect();
    for number in &order {
        let message = messages[*number].take().expect("once");
        message.send(()).expect("the call waits");
    }
    // A call that arrives now starts after them.
    calls.executor().execute(numbered(&sender, 100));
    start_all(&mut calls).await;
    let expected: Vec<usize> = order.into_iter().chain([100]).collect();
    assert_eq!(all(started), expected);
}

#[tokio::test]
async fn a_panic_in_a_call_does_not_affect_other_calls() {
    let (sender, started) = unbounded_channel();
    let mut calls = Calls::default();
    calls.executor().execute(async { panic!("a bug") });
    calls.executor().execute(numbered(&sender, 1));
    start_all(&mut calls).await;
    assert_eq!(all(started), [1]);
}

#[tokio::test]
async fn a_cancelled_token_ends_only_its_own_call() {
    let (first, first_ended) = tokio::sync::oneshot::channel::<()>();
    let (second, mut second_ended) = tokio::sync::oneshot::channel::<()>();
    let mut calls = Calls::default();
    let cut = CancellationToken::new();
    calls.executor().end_next_by(cut.clone());
    calls.executor().execute(async move {
        let _first = first;
        pending::<()>().await;
    });
    calls.executor().execute(async move {
        let _second = second;
        pending::<()>().await;
    });
    start_all(&mut calls).await;
    yield_now().await;
    cut.cancel();
    assert!(first_ended.await.is_err());
    assert!(
        second_ended
            .try_recv()
            .is_err_and(|error| error == tokio::sync::oneshot::error::TryRecvError::Empty)
    );
}

#[tokio::test]
async fn calls_that_never_started_end_with_their_connection() {
    let mut calls = Calls::default();
    let held = Arc::new(());
    for _ in 0..3 {
        // Like hyper's calls, each call has an executor.
        let (executor, held) = (calls.executor(), Arc::clone(&held));
        calls.executor().execute(async move {
            std::thread::sleep(START_LIMIT);
            let _kept = (executor, held);
        });
    }
    let (_, mut context) = noting_context();
    calls.start(&mut context);
    assert_eq!(Arc::strong_count(&held), 1 + 2);
    drop(calls);
    assert_eq!(Arc::strong_count(&held), 1);
}
