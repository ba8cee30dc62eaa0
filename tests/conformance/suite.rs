//! How a case runs, and what it may need of a store.

use crate::cases::limits;
use crate::fixture::{Fixture, Missing};

/// What a case asks of a store beyond exclusive claims in one replica's order.
#[derive(Debug, Clone, Copy)]
pub enum Needs {
    /// Shared claims and semaphores.
    Sharing,
    /// Re-entry.
    Reentry,
    /// That it remembers requests.
    RequestMemory,
    /// A change of metadata.
    Updates,
    /// One order for the waiters of all replicas.
    GlobalOrder,
    /// Minutes: on a virtual clock, or in a long run.
    Minutes,
}

impl Needs {
    fn are_met(self, fixture: &Fixture) -> bool {
        let capabilities = fixture.capabilities();
        match self {
            Self::Sharing => capabilities.sharing,
            Self::Reentry => capabilities.reentry,
            Self::RequestMemory => capabilities.remembers_requests,
            Self::Updates => capabilities.updates_metadata,
            Self::GlobalOrder => capabilities.global_order,
            Self::Minutes => fixture.has_minutes(),
        }
    }

    /// A case that does not apply shows that the store refuses or declares what it does not offer.
    async fn are_refused(self, fixture: &Fixture) {
        match self {
            Self::Sharing => limits::a_mode_is_offered_or_refused(fixture).await,
            Self::Reentry => limits::re_entry_is_offered_or_refused(fixture).await,
            Self::RequestMemory => limits::a_request_is_remembered_or_declared_forgotten(fixture).await,
            Self::Updates => limits::a_change_of_metadata_is_offered_or_refused(fixture).await,
            Self::GlobalOrder => limits::a_store_that_answers_is_serving(fixture).await,
            Self::Minutes => println!("takes minutes here: runs with the feature `soak`"),
        }
    }
}

/// Runs a case on a fresh fixture. Where its needs are not met, their refusal is what is tested. A
/// store that is missing is a failure where `CI` is `true`, and passed at home.
pub async fn run(opened: Result<Fixture, Missing>, needs: &[Needs], case: impl AsyncFn(&Fixture)) {
    match opened {
        Ok(fixture) => match needs.iter().find(|need| !need.are_met(&fixture)) {
            None => case(&fixture).await,
            Some(need) => need.are_refused(&fixture).await,
        },
        Err(missing) if std::env::var("CI").is_ok_and(|ci| ci == "true") => panic!("{missing}"),
        Err(missing) => println!("passed without a run: {missing}"),
    }
}

/// One test. A suite of `store_cases` leaves a case without the mark `@store` to the long runs, and to
/// `--include-ignored`: what it asks of a queue, the stores on a virtual clock answer by the same code.
macro_rules! conformance_case {
    (store_cases, $($test:tt)*) => {
        #[cfg_attr(not(feature = "soak"), ignore = "runs with the feature `soak`, or with --include-ignored")]
        $($test)*
    };
    ($scope:ident $($mark:ident)?, $($test:tt)*) => { $($test)* };
}

/// The tests of one theme.
macro_rules! conformance_theme {
    (
        $scope:ident, $open:path, $flags:tt,
        $room:ident::$theme:ident { $($(@ $mark:ident)? $case:ident $(: $first:ident $(+ $more:ident)*)?,)* }
    ) => {
        mod $theme {
            $(
                conformance_case! {
                    $scope $($mark)?,
                    #[tokio::test $flags]
                    async fn $case() {
                        let needs = &[$(crate::suite::Needs::$first $(, crate::suite::Needs::$more)*)?];
                        crate::suite::run($open().await, needs, crate::$room::$theme::$case).await;
                    }
                }
            )*
        }
    };
}
