use std::future::{pending, poll_fn};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::yield_now;

use super::*;

/// Says its number once, and then waits for ever.
fn says(said: &UnboundedSender<usize>, number: usize) -> impl Future<Output = ()> + Send + 'static {
    let said = said.clone();
    async move {
        said.send(number).expect("somebody listens");
        pending::<()>().await;
    }
}

async fn begun(calls: &mut Calls) {
    for _ in 0..64 {
        poll_fn(|cx| {
            calls.begin(cx);
            Poll::Ready(())
        })
        .await;
    }
}

fn all(mut said: UnboundedReceiver<usize>) -> Vec<usize> {
    std::iter::from_fn(|| said.try_recv().ok()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_begin_in_the_order_in_which_they_came() {
    let (say, said) = unbounded_channel();
    let mut calls = Calls::default();
    let many = 10 * AT_ONCE;
    for number in 0..many {
        calls.beginning().execute(says(&say, number));
    }
    begun(&mut calls).await;
    assert_eq!(all(said), (0..many).collect::<Vec<_>>());
}

#[tokio::test]
async fn many_calls_at_once_let_others_run() {
    let mut calls = Calls::default();
    for _ in 0..2 * AT_ONCE {
        calls.beginning().execute(async {});
    }
    let left = |calls: &Calls| calls.came.with(|came| came.calls.len());
    let (woken, mut context) = noting_context();
    assert!(!calls.begin(&mut context), "not all have begun");
    assert_eq!(left(&calls), AT_ONCE);
    assert!(
        woken.load(std::sync::atomic::Ordering::SeqCst),
        "it comes back for the rest"
    );
    calls.begin(&mut context);
    assert_eq!(left(&calls), 0);
}

/// A context that notes that it was woken.
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
async fn calls_whose_messages_come_later_go_on_in_the_order_of_their_messages() {
    let (say, said) = unbounded_channel();
    let mut calls = Calls::default();
    let mut messages = Vec::new();
    for number in 0..100 {
        let (message, comes) = tokio::sync::oneshot::channel::<()>();
        messages.push(message);
        let then = says(&say, number);
        calls.beginning().execute(async move {
            request::until_message(comes).await;
            then.await;
        });
    }
    begun(&mut calls).await;
    let order: Vec<usize> = (0..100).map(|number| (number * 37) % 100).collect();
    let mut messages: Vec<_> = messages.into_iter().map(Some).collect();
    for number in &order {
        let message = messages[*number].take().expect("once");
        message.send(()).expect("it waits for it");
    }
    // One that comes now came after them.
    calls.beginning().execute(says(&say, 100));
    begun(&mut calls).await;
    let expected: Vec<usize> = order.into_iter().chain([100]).collect();
    assert_eq!(all(said), expected);
}

#[tokio::test]
async fn a_call_that_panics_leaves_the_others_alone() {
    let (say, said) = unbounded_channel();
    let mut calls = Calls::default();
    calls.beginning().execute(async { panic!("a bug") });
    calls.beginning().execute(says(&say, 1));
    begun(&mut calls).await;
    assert_eq!(all(said), [1]);
}

#[tokio::test]
async fn what_ends_a_call_ends_that_one_alone() {
    let (ends, ended) = tokio::sync::oneshot::channel::<()>();
    let (goes_on, mut stays) = tokio::sync::oneshot::channel::<()>();
    let mut calls = Calls::default();
    let cut = CancellationToken::new();
    calls.beginning().ended_by(cut.clone());
    calls.beginning().execute(async move {
        let _ends = ends;
        pending::<()>().await;
    });
    calls.beginning().execute(async move {
        let _goes_on = goes_on;
        pending::<()>().await;
    });
    begun(&mut calls).await;
    yield_now().await;
    cut.cancel();
    assert!(ended.await.is_err());
    assert!(
        stays
            .try_recv()
            .is_err_and(|error| error == tokio::sync::oneshot::error::TryRecvError::Empty)
    );
}

#[tokio::test]
async fn calls_that_never_began_end_with_their_connection() {
    let mut calls = Calls::default();
    let held = Arc::new(());
    for _ in 0..3 * AT_ONCE {
        // As hyper's calls do.
        let (call, held) = (calls.beginning(), Arc::clone(&held));
        calls.beginning().execute(async move {
            let _kept = (call, held);
        });
    }
    let (_, mut context) = noting_context();
    calls.begin(&mut context);
    assert_eq!(Arc::strong_count(&held), 1 + 2 * AT_ONCE);
    drop(calls);
    assert_eq!(Arc::strong_count(&held), 1);
}
