//! How a case runs, and what it may need of a store.

use crate::bed::{Bed, Missing};
use crate::cases::limits;

/// What a case asks of a store beyond exclusive claims in one replica's order.
#[derive(Debug, Clone, Copy)]
pub enum Needs {
    /// Shared claims and semaphores.
    Sharing,
    /// Re-entry.
    Reentry,
    /// That it remembers requests.
    RequestMemory,
    /// One order for the waiters of all replicas.
    GlobalOrder,
    /// Minutes: on a virtual clock, or in a long run.
    Minutes,
}

impl Needs {
    fn are_met(self, bed: &Bed) -> bool {
        let offers = bed.offers();
        match self {
            Self::Sharing => offers.sharing,
            Self::Reentry => offers.reentry,
            Self::RequestMemory => offers.remembers_requests,
            Self::GlobalOrder => offers.global_order,
            Self::Minutes => bed.has_minutes(),
        }
    }

    /// A case that does not apply shows that the store refuses or declares what it does not offer.
    async fn are_refused(self, bed: &Bed) {
        match self {
            Self::Sharing => limits::a_mode_is_offered_or_refused(bed).await,
            Self::Reentry => limits::re_entry_is_offered_or_refused(bed).await,
            Self::RequestMemory => limits::a_request_is_remembered_or_declared_forgotten(bed).await,
            Self::GlobalOrder => limits::a_store_that_answers_is_serving(bed).await,
            Self::Minutes => println!("takes minutes here: runs with the feature `soak`"),
        }
    }
}

/// Runs a case on a fresh bed. Where its needs are not met, their refusal is what is tested. A
/// store that is missing is a failure where `CI` is `true`, and passed at home.
pub async fn run(opened: Result<Bed, Missing>, needs: &[Needs], case: impl AsyncFn(&Bed)) {
    match opened {
        Ok(bed) => match needs.iter().find(|need| !need.are_met(&bed)) {
            None => case(&bed).await,
            Some(need) => need.are_refused(&bed).await,
        },
        Err(missing) if std::env::var("CI").is_ok_and(|ci| ci == "true") => panic!("{missing}"),
        Err(missing) => println!("passed without a run: {missing}"),
    }
}

/// The tests of one theme.
macro_rules! conformance_theme {
    ($open:path, $flags:tt, $room:ident::$theme:ident { $($case:ident $(: $first:ident $(+ $more:ident)*)?,)* }) => {
        mod $theme {
            $(
                #[tokio::test $flags]
                async fn $case() {
                    let needs = &[$(crate::suite::Needs::$first $(, crate::suite::Needs::$more)*)?];
                    crate::suite::run($open().await, needs, crate::$room::$theme::$case).await;
                }
            )*
        }
    };
}
