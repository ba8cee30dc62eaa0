//! `--at-least`: the locks stay held for a time, even if the command ends sooner.

use std::time::Duration;

use fencepost::clock;

use super::held::HeldLocks;
use crate::cli::output::print_line;
use crate::cli::signals::Signals;

/// Leaves the locks held until `end`, on the clock since boot. Returns them if they are to be released now.
///
/// The leases get a TTL that ends then, and nobody renews them. Where that is not possible, because they last longer
/// already or the TTL is beyond the namespace's bounds, this waits until `end`. A signal ends the wait, not the leases.
pub async fn held_until(end: Duration, held: HeldLocks, signals: &mut Signals) -> Option<HeldLocks> {
    let rest = end.saturating_sub(clock::since_boot());
    if rest.is_zero() {
        return Some(held);
    }
    let lasts_longer = rest <= held.remaining();
    if !lasts_longer && held.extend(rest).await.is_ok() {
        held.leave().await;
        return None;
    }
    tokio::select! {
        biased;
        () = clock::sleep_until(end) => return Some(held),
        _ = signals.next() => {}
        loss = held.ending(Duration::ZERO) => {
            print_line(&format!("warning: --at-least was not kept: {loss}"));
        }
    }
    held.leave().await;
    None
}
