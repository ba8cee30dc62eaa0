//! All cases that a backend must pass, by theme, with what each needs of a store. `@store` marks what the server, the
//! network or the scripts of a real store can break; a change runs those alone on real stores.

/// One named test per case for a backend: `conformance_suite!(name, scope, open, (flags of tokio::test))`. The scope is
/// `every_case` or `store_cases`.
macro_rules! conformance_suite {
    ($backend:ident, $scope:ident, $open:path) => {
        conformance_suite!($backend, $scope, $open, (flavor = "multi_thread", worker_threads = 2));
    };
    ($backend:ident, $scope:ident, $open:path, $flags:tt) => {
        mod $backend {
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::exclusion {
                    a_new_claim_that_fits_is_held_at_once,
                    a_try_that_fits_is_held_at_once,
                    a_claim_that_does_not_fit_waits_behind_the_others,
                    @store a_try_finds_the_first_holder_and_leaves_nothing_behind,
                    a_try_does_not_overtake_a_waiter,
                    a_newcomer_does_not_overtake_a_waiter,
                    waiters_are_granted_in_the_order_of_their_arrival,
                    @store waiters_that_come_in_one_moment_are_granted_in_the_order_of_their_arrival,
                    @store waiters_of_several_replicas_keep_one_order: GlobalOrder,
                    a_waiter_that_leaves_lets_nobody_overtake,
                    two_claims_of_one_owner_exclude_each_other,
                    @store odd_names_are_different_locks,
                    @store no_name_escapes_its_namespace,
                    @store a_full_queue_refuses_the_next_and_counts_holders,
                    a_lock_lives_on_while_its_neighbours_come_and_go,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::tokens {
                    tokens_lie_on_a_scale_of_microseconds,
                    @store tokens_rise_across_every_end,
                    tokens_rise_from_waiter_to_waiter,
                    tokens_of_holders_together_differ: Sharing,
                    @store tokens_rise_through_many_quick_grants,
                    a_failed_try_takes_no_token_from_its_holder,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::modes {
                    readers_hold_together: Sharing,
                    a_writer_waits_for_the_last_reader: Sharing,
                    a_waiting_writer_stops_new_readers: Sharing + GlobalOrder,
                    @store readers_behind_a_writer_are_granted_together: Sharing,
                    a_semaphore_is_held_up_to_its_limit: Sharing,
                    @store a_big_semaphore_claim_is_not_starved: Sharing,
                    an_exclusive_claim_shares_with_no_permit: Sharing,
                    @store shared_and_semaphore_are_refused_both_ways: Sharing,
                    a_mismatch_with_a_waiter_is_refused_too: Sharing,
                    a_waiting_permit_does_not_pass_one_that_does_not_fit: Sharing,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::mixed_limits {
                    @store the_smallest_limit_counts: Sharing,
                    a_larger_limit_counts_when_the_smaller_ones_are_gone: Sharing,
                    waiters_are_woken_as_far_as_the_limit_that_is_left_allows: Sharing,
                    an_end_of_any_cause_leaves_the_limit_of_the_others: Sharing,
                    nobody_overtakes_a_claim_with_a_smaller_limit: Sharing,
                    a_big_claim_is_not_starved_by_smaller_limits: Sharing,
                    a_next_is_passed_that_the_limit_of_another_holder_keeps_waiting: Sharing,
                    a_retry_with_another_limit_is_refused: Sharing + RequestMemory,
                    a_reentry_with_another_limit_is_refused: Sharing + Reentry,
                }
            );
            #[cfg(debug_assertions)]
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::panics {
                    @store tasks_that_panic_begin_again_and_waiters_are_notified,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::waiting {
                    a_release_wakes_the_next_and_no_other,
                    @store a_release_at_another_replica_wakes_the_next,
                    a_release_wakes_every_reader_up_to_the_next_writer: Sharing,
                    a_release_that_makes_too_little_room_wakes_nobody: Sharing,
                    @store an_expiry_wakes_the_next,
                    a_renewed_holder_wakes_nobody_at_its_first_expiry,
                    a_force_wakes_the_next,
                    a_take_back_wakes_the_next,
                    a_waiter_that_leaves_wakes_those_it_kept_out: Sharing,
                    an_eligible_waiter_that_leaves_wakes_the_next,
                    a_waiter_in_the_middle_leaves_without_a_wake,
                    an_adoption_wakes_the_older_call: RequestMemory,
                    a_waiter_learns_its_turn_and_when_it_may_be_free,
                    promoting_an_unknown_claim_finds_nothing,
                    a_repeated_promotion_gives_the_same_grant,
                    a_promotion_right_after_a_direct_grant_gives_it_again,
                    waited_runs_from_the_arrival_to_the_grant,
                    the_ttl_of_a_waiter_starts_at_its_grant,
                    a_waiter_outlives_the_ttl_it_asked_for,
                    a_release_takes_effect_after_the_acquires_that_are_ordered_before_it,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::handing {
                    @store a_release_hands_over_to_the_next,
                    a_force_and_an_undo_hand_over_too,
                    a_next_that_is_not_first_is_passed,
                    a_next_that_another_call_adopted_is_passed: RequestMemory,
                    a_next_that_has_left_is_passed,
                    a_next_that_never_came_is_passed,
                    a_next_that_does_not_fit_yet_is_passed: Sharing,
                    a_hold_that_leaves_its_claim_hands_nothing_over: Reentry,
                    a_false_lease_hands_nothing_over,
                    @store a_release_sent_twice_grants_its_next_once,
                    a_hand_over_wakes_others_that_fit: Sharing,
                    what_was_handed_over_has_waited,
                    what_was_handed_over_can_be_undone,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::undo {
                    a_waiter_that_is_undone_leaves_the_queue,
                    a_grant_that_is_undone_frees_the_lock,
                    a_grant_that_was_waited_for_is_undone_too,
                    @store an_undo_that_comes_first_keeps_its_acquire_out,
                    an_undo_that_comes_first_keeps_its_acquire_out_of_the_queue,
                    a_mark_names_one_call_and_not_its_claim: RequestMemory,
                    marks_are_kept,
                    an_undo_of_the_older_call_leaves_an_adopted_waiter: RequestMemory,
                    @store an_undo_of_the_newer_call_takes_an_adopted_waiter_out: RequestMemory,
                    a_hold_that_a_retry_has_found_is_undone_by_neither_call: RequestMemory,
                    a_hold_granted_to_the_adopter_of_a_waiter_is_undone_by_it: RequestMemory,
                    an_undo_that_comes_first_keeps_its_retry_from_adopting: RequestMemory,
                    a_try_that_takes_its_claim_out_ends_the_older_call: RequestMemory,
                    a_try_that_takes_its_claim_out_wakes_the_older_call: RequestMemory,
                    an_undo_of_a_call_that_nobody_knows_harms_nobody,
                    a_repeated_undo_harms_nobody: RequestMemory,
                    an_undo_after_the_release_takes_nothing,
                    an_undo_of_a_failed_try_harms_nobody,
                    a_reentry_that_is_undone_takes_only_its_hold: Reentry,
                    a_first_hold_that_is_undone_leaves_the_reentry: Reentry,
                    a_reentry_that_a_retry_has_found_stays: Reentry + RequestMemory,
                    an_undo_that_comes_first_keeps_its_reentry_out: Reentry,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::reentry {
                    a_reentry_adds_a_hold_with_the_same_token: Reentry,
                    @store a_hold_that_another_replica_added_is_renewed_and_released_here: Reentry,
                    the_lock_is_free_when_every_hold_is_released: Reentry,
                    a_repeated_release_of_a_hold_leaves_the_others: Reentry,
                    both_sides_must_be_reentrant: Reentry,
                    another_owner_or_identity_does_not_reenter: Reentry,
                    a_reentry_of_another_mode_is_refused: Sharing + Reentry,
                    a_reentry_passes_those_who_wait: Reentry,
                    a_waiting_claim_is_not_reentered: Reentry,
                    a_reader_that_does_not_hold_yet_is_not_reentered: Sharing + Reentry,
                    the_holds_share_the_later_expiry: Reentry,
                    any_hold_renews_for_all: Reentry,
                    @store an_expiry_ends_every_hold: Reentry,
                    a_force_ends_every_hold: Reentry,
                    each_hold_is_remembered_with_its_own_end: Reentry,
                    a_claim_that_ended_is_not_reentered: Reentry,
                    readers_reenter_their_own_claim: Sharing + Reentry,
                    a_claim_takes_holds_up_to_its_limit: Reentry + RequestMemory,
                    a_retried_reentry_is_one_hold: Reentry + RequestMemory,
                    a_retry_of_a_released_reentry_learns_so: Reentry + RequestMemory,
                    a_first_hold_that_is_forgotten_may_come_again: Reentry + RequestMemory + Minutes,
                    a_renewal_gives_a_hold_the_ttl_that_it_was_last_given: Reentry,
                    a_full_queue_lets_its_holder_reenter: Reentry,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::retries {
                    a_retry_finds_its_hold: RequestMemory,
                    a_try_finds_its_hold_too: RequestMemory,
                    @store a_retry_finds_its_place_in_the_queue: RequestMemory,
                    a_waiter_takes_the_ttl_and_metadata_of_its_retry: RequestMemory,
                    a_retry_that_fits_by_now_is_held_at_once: RequestMemory,
                    a_try_that_fits_by_now_is_held_at_once: RequestMemory,
                    a_try_takes_its_own_waiting_claim_out: RequestMemory,
                    a_claim_that_a_try_took_out_is_forgotten: RequestMemory,
                    @store a_retry_after_the_end_learns_its_cause: RequestMemory,
                    a_retry_learns_its_end_while_another_holds: RequestMemory,
                    a_take_back_forgets_the_request: RequestMemory,
                    a_claim_that_ended_waiting_is_forgotten: RequestMemory,
                    a_failed_try_is_forgotten: RequestMemory,
                    a_retry_with_other_parameters_is_refused: RequestMemory,
                    a_retry_with_other_permits_or_limit_is_refused: Sharing + RequestMemory,
                    a_full_queue_lets_a_retry_find_its_claim: RequestMemory,
                    past_the_limit_the_oldest_ends_are_forgotten: RequestMemory,
                    an_end_is_remembered_although_its_request_waited_in_vain_before: RequestMemory,
                    ends_are_remembered_for_their_time: RequestMemory + Minutes,
                    ends_are_forgotten_after_their_time: RequestMemory + Minutes,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::resumed {
                    @store an_acquire_of_an_earlier_stream_takes_no_place: RequestMemory,
                    @store an_acquire_of_an_earlier_stream_finds_no_hold: RequestMemory,
                    @store a_hold_that_a_later_stream_has_found_is_undone_by_its_call_alone: RequestMemory,
                    a_hold_that_two_calls_of_one_stream_have_found_is_undone_by_neither: RequestMemory,
                    a_place_that_fits_by_now_is_granted_to_the_later_stream_alone: RequestMemory,
                    a_call_of_no_stream_adopts_and_leaves_the_number: RequestMemory,
                    the_grant_of_a_place_that_a_call_of_no_stream_adopted_has_the_number: RequestMemory,
                    @store an_update_of_an_earlier_stream_changes_nothing: Updates,
                    @store a_request_that_is_cancelled_leaves_the_queue_and_is_forgotten: RequestMemory,
                    a_grant_that_is_cancelled_is_released_and_wakes_the_next: RequestMemory,
                    a_request_of_a_later_stream_or_of_another_caller_is_not_cancelled: RequestMemory,
                    @store a_call_owns_what_it_has_until_another_has_found_it: RequestMemory,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::release {
                    a_release_frees_the_lock,
                    any_replica_releases,
                    a_repeated_release_frees_nobody_else,
                    @store a_release_after_the_expiry_frees_nobody_else,
                    a_release_after_a_force_frees_nobody_else,
                    a_lease_with_a_false_part_releases_nothing,
                    a_lease_of_another_lock_releases_nothing,
                    a_released_lease_with_another_token_is_unknown,
                    a_released_lease_with_another_secret_is_unknown,
                    a_force_removes_whoever_holds_the_token,
                    a_force_of_a_token_that_ended_says_how,
                    a_force_of_an_unknown_token_removes_nobody,
                    a_force_of_a_token_of_another_lock_removes_nobody,
                    a_force_removes_one_of_several_holders: Sharing,
                    a_release_removes_one_of_several_holders: Sharing,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::kept {
                    @store the_lock_stays_taken_for_the_time_and_no_shorter: RequestMemory,
                    @store a_kept_lock_serves_its_waiter_after_the_time: RequestMemory,
                    @store the_time_counts_at_other_replicas_when_the_one_that_released_is_gone: RequestMemory,
                    @store the_lease_of_a_kept_lock_is_released: RequestMemory,
                    the_first_release_of_a_lease_decides_the_time: RequestMemory,
                    a_release_without_a_time_is_not_followed_by_one_with_it: RequestMemory,
                    only_a_force_frees_a_kept_lock_sooner: RequestMemory,
                    a_reentry_queues_behind_a_kept_lock: RequestMemory + Reentry,
                    a_claim_lives_while_a_hold_does_and_for_the_time_of_each_release: RequestMemory + Reentry,
                    a_kept_reader_excludes_as_a_reader: RequestMemory + Sharing,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::renewal {
                    a_renewal_gives_the_time_that_was_asked,
                    @store any_replica_renews,
                    @store a_lease_keeps_others_out_for_its_ttl_from_the_sending_of_its_call_or_renewal,
                    a_renewed_lease_outlives_its_first_ttl,
                    a_lease_outlives_the_ttl_of_an_earlier_one,
                    a_shorter_renewal_never_shortens,
                    a_renewal_without_a_ttl_uses_the_last_one,
                    the_last_ttl_may_be_a_shorter_one,
                    @store a_lease_that_ran_out_is_gone_though_nobody_took_the_lock,
                    an_end_that_was_shown_is_final,
                    a_late_renewal_gives_nothing_to_the_next_holder,
                    a_lease_that_was_given_back_or_forced_is_gone,
                    a_lease_with_a_false_part_renews_nothing,
                    a_renewal_keeps_waiters_waiting,
                    renewals_of_two_holders_are_apart: Sharing,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::metadata {
                    an_update_replaces_what_the_holder_shows: Updates,
                    an_update_sent_twice_is_one: Updates,
                    @store updates_and_renewals_at_several_replicas_keep_each_other: Updates,
                    an_update_gives_no_time: Updates,
                    a_late_update_gives_no_time: Updates,
                    a_retry_after_a_late_update_is_told_what_is_left: Updates,
                    an_update_elsewhere_gives_and_takes_no_time: Updates,
                    an_update_after_the_end_learns_its_cause_and_changes_nobody: Updates,
                    a_lease_with_a_false_part_updates_nothing: Updates,
                    each_hold_of_a_claim_updates_it: Updates + Reentry,
                    an_update_of_one_of_several_holders_leaves_the_others: Updates + Sharing,
                    a_watch_shows_an_update_and_no_renewal: Updates,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::looking {
                    a_lock_that_nobody_uses_is_free,
                    an_inspection_shows_what_the_claims_say: Sharing,
                    an_inspection_counts_more_than_it_shows: Sharing,
                    an_inspection_shows_no_expired_holder,
                    a_list_shows_the_locks_in_use_by_name,
                    a_page_begins_no_sooner_than_its_prefix,
                    @store a_prefix_is_text_and_no_pattern,
                    a_lock_leaves_the_list_with_its_last_claim,
                    an_expired_lock_leaves_the_list,
                    a_watch_begins_with_the_state,
                    @store a_watch_at_another_replica_sees_who_holds,
                    a_watch_shows_each_change,
                    @store a_watch_shows_every_kind_of_end,
                    a_watch_shows_a_hand_over_as_end_and_grant,
                    a_watch_shows_the_release_of_a_kept_lock_and_then_its_end: RequestMemory,
                    a_watch_shows_the_forced_end_of_a_kept_lock: RequestMemory,
                    a_watch_sees_its_own_lock_alone,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                cases::limits {
                    a_store_that_answers_is_serving,
                    a_mode_is_offered_or_refused,
                    re_entry_is_offered_or_refused,
                    a_change_of_metadata_is_offered_or_refused,
                    a_request_is_remembered_or_declared_forgotten,
                    a_kept_lock_is_offered_or_refused,
                    @store a_closed_store_answers_nothing,
                }
            );
        }
    };
}
