use super::*;

#[test]
fn a_store_without_space_is_asked_only_for_deletions() {
    let mut slots = Slots::default();
    slots.begin(7, 1);
    let holder = "/r/l/00/a/h-x~x8g1-0.5";
    let record = Op::create("/r/c/00/e-1", Vec::new());
    let grant = Op::create("/r/l/00/b/h-x", Vec::new());
    let steps = [
        vec![Op::delete(holder, 6), record],
        vec![Op::delete(holder, 6)],
        vec![grant],
    ];
    let guards = [Op::check("/r/s/7", 3)];
    let plan = Commit::plan(("/r", 7, Some("full")), &mut slots, &guards, &steps);
    assert_eq!(plan.sent().len(), 1);
    let refused = |index| Outcome::Refused {
        index,
        reason: Reason::Other("full".into()),
    };
    let done = Outcome::Done(vec![Done::Nothing]);
    let outcomes = plan.outcomes(std::iter::once(done.clone()));
    assert_eq!(outcomes, [refused(1), done, refused(0)]);
}

#[test]
fn a_directory_is_there_unasked() {
    let plan = Commit::plan(
        ("/r", 7, None),
        &mut Slots::default(),
        &[],
        &[vec![Op::create("/r/l/00", Vec::new())]],
    );
    let (index, reason) = (0, Reason::NodeExists);
    assert!(!plan.is_sent());
    assert_eq!(plan.unsent().steps, [Outcome::Refused { index, reason }]);
}
