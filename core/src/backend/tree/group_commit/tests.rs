use super::batch::*;
use super::*;

const BOUNDS: CommitBounds = CommitBounds::ALL_OR_NONE;

fn pending(lock: &str, class: Class) -> (Pending, oneshot::Receiver<Result<StepDone, Failure>>) {
    let (answer, answered) = oneshot::channel();
    let step = Step {
        lock: LockName::new(lock).unwrap(),
        class,
        fenced: true,
        ops: Vec::new(),
        read_over: None,
        grant: None,
        call: None,
        patient: false,
    };
    let (since, until) = (Instant::now(), None);
    let pending = Pending {
        step,
        since,
        until,
        answer,
    };
    (pending, answered)
}

/// The locks and classes of the batches that are sent, none of which is answered.
fn batches(steps: &[(&str, Class)]) -> Vec<Vec<OrderKey>> {
    let (mut waiting, _answers): (VecDeque<_>, Vec<_>) =
        steps.iter().map(|(lock, class)| pending(lock, *class)).unzip();
    let (mut busy, mut sent) = (HashSet::new(), Vec::new());
    while let Some((locks, batch)) = take_batch(&mut waiting, &busy, BOUNDS, 1024) {
        busy.extend(locks);
        sent.push(
            batch
                .into_iter()
                .map(|pending| (pending.step.lock, pending.step.class))
                .collect(),
        );
    }
    sent
}

fn keys(steps: &[(&str, Class)]) -> Vec<OrderKey> {
    steps
        .iter()
        .map(|(lock, class)| (LockName::new(lock).unwrap(), *class))
        .collect()
}

const APPEND: Class = Class::Append;
const ALONE: Class = Class::Alone;

#[test]
fn a_batch_has_one_step_of_each_lock_or_several_appends_to_its_queue() {
    let sent = batches(&[("a", ALONE), ("b", APPEND), ("a", ALONE), ("b", APPEND), ("b", ALONE)]);
    assert_eq!(
        sent,
        [
            keys(&[("a", ALONE), ("b", APPEND), ("b", APPEND)]),
            keys(&[("b", ALONE)]),
        ],
        "the second step of a lock waits for the answer to the first"
    );
}

#[test]
fn appends_wait_for_each_other_and_not_for_a_hand_over() {
    assert_eq!(
        batches(&[("a", ALONE), ("a", APPEND), ("a", ALONE)]),
        [keys(&[("a", ALONE)]), keys(&[("a", APPEND)])]
    );
    let busy = HashSet::from([(LockName::new("a").unwrap(), APPEND)]);
    let (one, _answer) = pending("a", APPEND);
    assert!(take_batch(&mut VecDeque::from([one]), &busy, BOUNDS, 1024).is_none());
}

#[test]
fn a_step_is_not_sent_before_an_earlier_append_to_the_queue_of_its_lock() {
    let busy = HashSet::from([(LockName::new("a").unwrap(), APPEND)]);
    let (mut waiting, _answers): (VecDeque<_>, Vec<_>) =
        [pending("a", APPEND), pending("a", ALONE)].into_iter().unzip();
    assert!(take_batch(&mut waiting, &busy, BOUNDS, 1024).is_none());
    assert!(take_batch(&mut waiting, &HashSet::new(), BOUNDS, 1024).is_some());
    let (locks, _) = take_batch(&mut waiting, &busy, BOUNDS, 1024).expect("the append is under way");
    assert_eq!(locks, HashSet::from([(LockName::new("a").unwrap(), ALONE)]));
}

#[tokio::test]
async fn a_batch_whose_task_panics_counts_as_answered() {
    let (answered, mut answers) = mpsc::unbounded_channel();
    let locks = HashSet::from([(LockName::new("a").unwrap(), Class::Alone)]);
    let in_flight = InFlightGuard {
        locks: locks.clone(),
        is_of_reader: false,
        not_sent: None,
        answered,
    };
    let task = tokio::spawn(async move {
        let _in_flight = in_flight;
        panic!("a fault");
    });
    assert!(task.await.is_err());
    assert_eq!(answers.recv().await.unwrap().locks, locks);
}

const INDEPENDENT: CommitBounds = CommitBounds {
    independent: true,
    numbers_leap: false,
    step_ops: 2,
    ..BOUNDS
};

/// What a step is sent with.
fn with(lock: &str, class: Class, change: impl FnOnce(&mut Pending)) -> Pending {
    let (mut pending, answered) = pending(lock, class);
    // A caller that waits.
    std::mem::forget(answered);
    change(&mut pending);
    pending
}

fn granting(pending: &mut Pending) {
    let claim = Claim::of(&crate::backend::NewClaim::numbered(1));
    pending.step.grant = Some((0, Arc::new(claim)));
}

fn writing(path: &'static str) -> impl FnOnce(&mut Pending) {
    move |pending| pending.step.ops = vec![Op::delete(path, 1)]
}

/// The classes of the first batch of independent steps.
fn first(steps: impl IntoIterator<Item = Pending>, busy: &HashSet<OrderKey>) -> Vec<Class> {
    let batch = take_batch(&mut steps.into_iter().collect(), busy, INDEPENDENT, 1024);
    let batch = batch.map(|(_, batch)| batch).unwrap_or_default();
    batch.into_iter().map(|pending| pending.step.class).collect()
}

#[test]
fn independent_steps_of_a_lock_go_together_unless_both_grant_or_write_one_node() {
    let none = HashSet::new();
    let two = |one: Pending, other: Pending| first([one, other], &none).len();
    let other = || with("a", ALONE, |_| ());
    assert_eq!(two(with("a", ALONE, granting), other()), 2);
    assert_eq!(
        two(with("a", ALONE, granting), with("a", ALONE, granting)),
        1,
        "they would share a token"
    );
    assert_eq!(two(with("a", ALONE, granting), with("b", ALONE, granting)), 2);
    assert_eq!(two(with("a", ALONE, writing("/n")), with("a", ALONE, writing("/m"))), 2);
    assert_eq!(
        two(with("a", ALONE, writing("/n")), with("b", ALONE, writing("/n"))),
        1,
        "both would be done"
    );
    let large = || with("c", ALONE, |pending| pending.step.ops = vec![Op::check("/n", 1); 3]);
    assert_eq!((two(large(), other()), two(other(), large())), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_patient_append_goes_with_the_next_step_on_its_lock_or_when_its_time_is_over() {
    let none = HashSet::new();
    let patient = |lock| with(lock, APPEND, |pending| pending.until = Some(Instant::now() + PATIENCE));
    assert_eq!(first([patient("a"), with("b", ALONE, |_| ())], &none), [ALONE]);
    assert_eq!(first([patient("a"), with("a", ALONE, |_| ())], &none), [APPEND, ALONE]);
    assert_eq!(first([with("a", ALONE, |_| ()), patient("a")], &none), [ALONE, APPEND]);
    let patient_too = |path| {
        let mut append = patient("a");
        writing(path)(&mut append);
        append
    };
    let [one, other] = [patient_too("/n"), with("a", ALONE, writing("/n"))];
    assert_eq!(first([one, other], &none), [APPEND], "both would write one node");
    let [one, other, last] = [patient_too("/n"), patient_too("/n"), with("a", ALONE, |_| ())];
    assert_eq!(
        first([one, other, last], &none),
        [APPEND],
        "none gets ahead of an append"
    );
    let late = patient("a");
    tokio::time::advance(PATIENCE).await;
    assert_eq!(first([late, patient("a"), patient("b")], &none), [APPEND, APPEND]);
}

#[test]
fn an_independent_step_waits_for_the_appends_of_its_lock_that_are_under_way() {
    let busy = HashSet::from([(LockName::new("a").unwrap(), APPEND)]);
    assert_eq!(first([with("a", ALONE, |_| ())], &busy), []);
    assert_eq!(first([with("b", ALONE, |_| ())], &busy), [ALONE]);
}
