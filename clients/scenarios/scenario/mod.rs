//! The scenarios; each shows what its name says. `clients/SPEC.md` lists them beside the rules that they hold.

mod access;
mod blocks;
mod leases;
mod modes;
mod network;
mod servers;
mod sizes;

use crate::driver::Client;

/// A scenario, which panics where a client breaks a rule.
pub struct Scenario {
    pub name: &'static str,
    /// The optional operation that it needs.
    pub needs: Option<&'static str>,
    /// Whether it runs only with `--soak`.
    pub is_long: bool,
    pub run: fn(&Client),
}

const fn short(name: &'static str, run: fn(&Client)) -> Scenario {
    Scenario {
        name,
        needs: None,
        is_long: false,
        run,
    }
}

const fn needing(what: &'static str, name: &'static str, run: fn(&Client)) -> Scenario {
    Scenario {
        name,
        needs: Some(what),
        is_long: false,
        run,
    }
}

const fn long(name: &'static str, run: fn(&Client)) -> Scenario {
    Scenario {
        name,
        needs: None,
        is_long: true,
        run,
    }
}

/// Those that take longest first.
pub const ALL: &[Scenario] = &[
    long(
        "a_wait_of_70_s_keeps_its_place_through_nginx",
        network::long_wait_through_nginx,
    ),
    long(
        "a_silent_connection_loses_no_lease_of_30_s",
        network::silent_connection_30_s,
    ),
    long(
        "a_silent_connection_loses_no_lease_of_10_s",
        network::silent_connection_10_s,
    ),
    long("an_observer_sees_no_older_leader_over_20_leaders", modes::observe_long),
    short("a_silent_connection_loses_no_lease", network::silent_connection),
    short("silence_to_the_server_loses_no_lease", network::silence_up),
    short("silence_to_the_client_loses_no_lease", network::silence_down),
    short("waits_through_nginx_hold_up_no_release", network::waits_through_nginx),
    short("a_delay_of_1500_ms_loses_no_lease", network::delay),
    short("a_storm_of_resets_loses_no_lease", network::resets),
    short("a_lost_answer_is_found_again", network::lost_answer),
    short("a_hung_server_is_a_loss_in_time", network::hang),
    short(
        "a_stopped_client_knows_that_its_lease_has_ended",
        network::stopped_client,
    ),
    short("a_restart_of_an_embedded_server_loses_no_lease", servers::restart),
    // Clients over KeepAlive have no session that could be resumed.
    Scenario {
        name: "a_rolling_restart_takes_no_place_of_a_wait",
        needs: Some("resume"),
        is_long: true,
        run: servers::rolling,
    },
    needing(
        "resume",
        "a_wait_whose_connection_breaks_has_its_place_again",
        network::broken_wait,
    ),
    short("a_drain_moves_leases_and_waits_to_the_next_server", servers::drain),
    short("a_killed_server_is_replaced_by_the_next", servers::failover),
    short("a_dead_first_address_costs_little", servers::dead_first_address),
    short("a_silent_first_address_costs_little", servers::silent_first_address),
    short("a_forced_release_is_told_at_once", servers::forced),
    short("a_forced_release_at_another_server_is_told", servers::forced_elsewhere),
    short("a_quarantine_is_told", servers::quarantine),
    short("a_wrong_authority_is_an_error", access::wrong_authority),
    // Clients over KeepAlive repeat for the whole wait.
    needing(
        "final_tls",
        "tls_that_cannot_work_ends_a_wait_at_once",
        access::final_tls,
    ),
    // Clients over KeepAlive compare a refusal with the token of now, and end their observers.
    needing(
        "token_rotation",
        "a_token_that_is_replaced_fails_nothing",
        access::replaced_token,
    ),
    // Clients over KeepAlive tell a loss when the time is over.
    needing("early_loss", "a_loss_is_told_before_the_next_grant", leases::early_loss),
    // Clients over KeepAlive keep the lock for the TTL.
    needing("once", "a_job_that_exits_keeps_its_lock_for_its_time", leases::at_least),
    // Clients over KeepAlive send a beat for each grant.
    needing("due_renewals", "short_locks_renew_no_others", leases::short_locks),
    short("a_bearer_token_is_read_again", access::bearer),
    short("what_no_rule_allows_is_denied_at_once", access::denied),
    short("an_overloaded_server_is_asked_again", access::overloaded),
    short("a_full_queue_is_asked_again", access::queue_full),
    short("every_failure_of_a_block_releases", blocks::failures),
    short("a_cancelled_wait_leaves_the_queue", blocks::cancelled_wait),
    short("a_cancelled_block_releases", blocks::cancelled_block),
    needing(
        "interrupt",
        "an_interrupt_leaves_the_queue_and_the_block",
        blocks::interrupted,
    ),
    short("a_storm_of_cancels_leaves_no_lease", blocks::cancels),
    short("an_abandoned_grant_is_undone", blocks::abandoned_grant),
    needing("block", "after_a_blocked_loop_check_reads_the_clock", blocks::blocked),
    needing(
        "slow_callback",
        "a_slow_callback_stops_no_renewal",
        blocks::slow_callback,
    ),
    needing("fork", "a_forked_child_touches_no_lock_of_its_parent", blocks::forked),
    short("a_held_lock_is_an_error_at_once", blocks::held),
    short("a_wait_that_runs_out_is_an_error", blocks::timeout),
    short("a_ttl_of_25_days_is_held", blocks::long_ttl),
    short("close_releases_what_is_held", blocks::close),
    short("close_without_a_server_ends", blocks::close_without_a_server),
    short("a_program_that_holds_nothing_can_exit", blocks::exit),
    short("dropped_clients_give_everything_back", sizes::churn),
    short("long_names_are_kept", sizes::long_names),
    short("many_leases_are_kept", sizes::many_leases),
    short("many_locks_at_once_are_granted_and_released", sizes::many_at_once),
    short("a_semaphore_admits_its_limit", modes::semaphore),
    short("readers_share_and_a_writer_excludes", modes::readers_and_writer),
    short("several_locks_do_not_deadlock", modes::several),
    short("an_election_has_one_leader_at_a_time", modes::election),
    short("an_observer_sees_no_older_leader", modes::observe),
    short("metadata_is_shown", modes::metadata),
    // Not known of the other clients.
    needing("no_proxy", "no_proxy_variable_is_obeyed", network::proxy_variables),
];
