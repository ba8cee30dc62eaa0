use super::*;

#[test]
fn halves_with_steps_of_one_lock_are_recognised() {
    let half = |names: &[&str]| -> Vec<Pending> {
        let pending = |name: &&str| Pending {
            step: Step {
                lock: LockName::new(name).unwrap(),
                class: Class::Append,
                fenced: true,
                ops: Vec::new(),
                call: None,
            },
            answer: oneshot::channel().0,
        };
        names.iter().map(pending).collect()
    };
    assert!(share_a_lock(&half(&["a", "b"]), &half(&["c", "b"])));
    assert!(!share_a_lock(&half(&["a", "b"]), &half(&["c"])));
}

#[tokio::test]
async fn a_batch_whose_task_panics_counts_as_answered() {
    let (answered, mut answers) = mpsc::unbounded_channel();
    let locks = HashSet::from([(LockName::new("a").unwrap(), Class::Alone)]);
    let under_way = UnderWay {
        locks: locks.clone(),
        away: None,
        answered,
    };
    let task = tokio::spawn(async move {
        let _under_way = under_way;
        panic!("a fault");
    });
    assert!(task.await.is_err());
    assert_eq!(answers.recv().await.unwrap().locks, locks);
}
