//! A forced release, and the record by which the other replicas learn of it.

use fencepost::backend::{ReleaseTarget, Released};
use fencepost::claim::Cause;
use fencepost::name::FencingToken;

use crate::claims::claim;
use crate::fixture::Fixture;

/// The transactions of the first replica that write the record of this token.
fn telling(fixture: &Fixture, token: FencingToken) -> Vec<Vec<u8>> {
    let record = fixture.key(&format!("forced/{token}"));
    let (mut transactions, _) = fixture.proxy.transactions();
    transactions.retain(|sent| is_in(sent, &record));
    transactions
}

fn is_in(sent: &[u8], text: &str) -> bool {
    sent.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_tells_the_other_replicas_in_its_own_transaction() {
    let Some(fixture) = Fixture::new().await else { return };
    for is_handed_over in [false, true] {
        let (here, there) = (fixture.here(), fixture.there());
        let held = there.hold(claim("held")).await;
        let next = match is_handed_over {
            true => Some(here.queue(claim("next")).await),
            false => None,
        };
        fixture.proxy.transactions();
        let target = ReleaseTarget::Forced(held.token());
        let outcome = here.end(target, next.as_ref()).await;
        assert_eq!(outcome.released, Released::Ended(Cause::Forced));
        assert_eq!(outcome.next.is_some(), is_handed_over);
        // So it is there when the release is answered, also if this replica stops now.
        let record = format!("forced/{}", held.token());
        assert_eq!(fixture.text(&record).await, here.name().as_str());
        let telling = telling(&fixture, held.token());
        let [release] = &telling[..] else {
            panic!("not one transaction: {}", telling.len());
        };
        assert!(is_in(release, "\th/x/"), "it does not end the holder");
        if let Some(grant) = outcome.next {
            let next = here.known(next.expect("it waits"), grant);
            here.release(&next).await;
        }
    }
}
