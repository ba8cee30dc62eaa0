//! All cases that the service over a backend must pass, by theme, with what each needs of the store. `@store` means the
//! same as in the table of the backend's cases.

/// One named test per case of the service over a backend, in real time.
macro_rules! service_suite {
    ($backend:ident, $scope:ident, $open:path) => {
        service_suite!($backend, $scope, $open, (flavor = "multi_thread", worker_threads = 2));
    };
    ($backend:ident, $scope:ident, $open:path, $flags:tt) => {
        mod $backend {
            conformance_theme!(
                $scope,
                $open,
                $flags,
                grpc::answers {
                    lock_held_names_the_holder,
                    lock_held_is_the_answer_behind_a_waiter_too: Sharing,
                    superseded_ends_the_wait_that_a_retry_took_over: RequestMemory,
                    @store lease_lost_names_its_cause,
                    lease_lost_is_unknown_for_a_lease_that_nobody_was_given,
                    lease_lost_answers_a_force_of_what_is_not_held,
                    @store unsupported_answers_what_the_store_does_not_offer,
                    already_released_answers_a_late_retry: RequestMemory,
                    @store a_late_retry_learns_of_a_force_and_an_expiry: RequestMemory,
                    limit_mismatch_says_what_is_there: Sharing,
                    invalid_field_answers_a_retry_with_other_parameters: Sharing + Reentry + RequestMemory,
                    invalid_field_answers_a_reentry_in_another_mode: Sharing + Reentry,
                    namespace_not_found_answers_every_method,
                    queue_full_says_when_to_come_again,
                    queue_full_answers_too_many_holds: Reentry,
                    overloaded_leaves_renew_and_release_alone,
                    @store an_unreachable_store_is_unavailable,
                    @store a_wait_that_ends_while_the_store_is_unreachable_says_so,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                grpc::input {
                    a_bad_namespace_is_refused,
                    a_bad_name_is_refused,
                    a_name_above_the_bound_of_its_namespace_is_refused,
                    a_bad_owner_is_refused,
                    a_bad_ttl_is_refused,
                    a_ttl_outside_the_bounds_of_its_namespace_is_refused,
                    @store a_ttl_within_the_bounds_is_granted_as_it_was_asked_for,
                    a_bad_wait_is_refused,
                    a_bad_mode_is_refused: Sharing,
                    a_bad_request_id_is_refused: RequestMemory,
                    bad_metadata_is_refused,
                    a_bad_lease_id_is_refused,
                    a_bad_ttl_of_a_renewal_is_refused,
                    a_bad_place_to_look_is_refused,
                    a_bad_page_is_refused,
                    a_bad_token_is_refused,
                    an_empty_request_is_refused_and_the_server_lives_on,
                    @store the_longest_of_everything_is_accepted: Sharing + RequestMemory,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                grpc::leases {
                    a_lease_says_what_was_granted,
                    a_lease_id_is_all_that_renew_and_release_need,
                    a_repeated_release_succeeds_and_frees_nobody,
                    @store a_release_keeps_the_lock_for_the_time_that_it_says: RequestMemory,
                    a_time_to_keep_beyond_its_bounds_changes_nothing: RequestMemory,
                    tokens_rise_from_lease_to_lease,
                    a_retry_gets_the_same_lease: RequestMemory,
                    a_request_id_belongs_to_its_lock_and_owner: Sharing + RequestMemory,
                    a_reentry_is_a_lease_of_its_own_on_the_same_claim: Reentry,
                    a_retried_reentry_gets_the_same_lease: Reentry + RequestMemory,
                    check_token_is_true_only_while_it_is_held,
                    readers_and_permits_share: Sharing,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                grpc::waiting {
                    a_wait_of_three_seconds_ends_within_its_window,
                    a_wait_ends_before_its_callers_deadline,
                    @store waiters_are_served_in_order,
                    a_lease_says_how_long_its_call_waited,
                    @store an_expiry_serves_the_next,
                    @store a_kept_lock_serves_the_next_when_its_time_is_over: RequestMemory,
                    a_force_serves_the_next,
                    @store a_waiter_whose_call_was_dropped_leaves_the_queue,
                    @store a_retry_after_a_dropped_call_keeps_its_lease: RequestMemory,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                grpc::mixed_limits {
                    a_larger_limit_is_granted_behind_smaller_ones: Sharing,
                    @store a_limit_that_is_changed_under_load_is_never_exceeded: Sharing,
                    invalid_field_answers_a_retry_with_another_limit: Sharing + RequestMemory,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                grpc::elections {
                    a_candidate_that_fits_leads_and_is_shown,
                    an_election_is_the_lock_of_its_name,
                    the_next_candidate_leads_when_the_leader_resigns,
                    a_retried_campaign_gets_the_same_leadership: RequestMemory,
                    a_kept_election_has_no_leader: RequestMemory,
                    a_proclamation_replaces_the_value_or_is_unsupported,
                    a_proclamation_of_a_leader_that_was_deposed_changes_nothing: Updates,
                    the_longest_value_is_proclaimed_and_shown: Updates,
                    an_observer_sees_the_leader_and_then_each_change,
                    @store an_observer_sees_each_proclamation: Updates,
                    @store observers_never_see_an_older_leader_and_all_see_the_last,
                    an_observer_that_reads_late_sees_the_last_leader,
                    a_stop_ends_observers_at_once,
                    a_field_beyond_its_bounds_is_refused_by_its_name,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                grpc::several {
                    all_are_granted_in_the_order_of_the_request,
                    one_that_is_held_leaves_none_held,
                    a_wait_that_ends_gives_all_back,
                    @store all_are_renewed_before_the_answer,
                    those_that_are_held_live_while_it_waits_for_the_rest,
                    the_loss_of_one_ends_the_call_and_gives_the_rest_back,
                    a_call_that_is_dropped_gives_all_back,
                    a_retry_finds_what_its_first_call_was_given: RequestMemory,
                    @store calls_that_cross_never_deadlock_and_exclude_each_other,
                    each_lock_has_its_mode: Sharing,
                    release_all_answers_for_each_lease,
                    a_set_beyond_its_bounds_is_refused,
                    a_stop_ends_the_wait_and_gives_all_back,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                grpc::metadata {
                    an_update_is_shown_or_unsupported,
                    an_update_of_a_lost_lease_says_so: Updates,
                    an_update_beyond_its_bounds_is_refused,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                grpc::keeping {
                    a_client_that_answers_keeps_all_its_leases,
                    a_forced_lease_is_told_lost_at_once,
                    a_lease_that_another_call_released_is_told_lost_at_once,
                    a_lease_that_ended_at_another_replica_is_told_with_the_next_beat,
                    @store a_lease_that_was_forced_at_another_replica_is_told_at_once_where_the_store_tells,
                    a_lease_that_ran_out_is_told_lost,
                    a_lease_that_another_client_renews_is_not_told_lost,
                    a_lease_that_cannot_be_kept_is_told_with_its_reason,
                    a_client_without_leases_is_asked_again,
                    the_end_of_the_stream_gives_nothing_back,
                    a_beat_that_is_too_large_is_refused_and_the_server_lives_on,
                    a_beat_with_too_many_leases_or_with_one_twice_is_refused,
                    a_stop_ends_the_stream_at_once,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                grpc::sessions {
                    a_session_does_what_calls_do,
                    a_client_says_its_name_first,
                    an_error_of_a_command_is_that_of_its_call,
                    a_cancelled_wait_gets_one_result_and_has_left_the_queue,
                    a_wait_that_is_cancelled_in_its_own_message_gets_one_result,
                    @store commands_on_one_lock_take_effect_in_the_order_in_which_they_were_sent,
                    waits_of_one_message_are_served_in_their_order,
                    tries_of_one_message_take_effect_in_their_order,
                    a_command_on_another_lock_passes_those_that_wait,
                    a_keep_alive_renews_all_attached_leases,
                    a_lease_that_any_replica_granted_is_attached,
                    a_keep_alive_tells_each_ttl_that_the_session_did_not_tell,
                    what_cannot_be_attached_attaches_nothing,
                    a_detached_lease_is_not_renewed_and_not_told,
                    a_lease_that_is_detached_or_released_behind_a_keep_alive_is_not_confirmed,
                    a_keep_alive_behind_a_renewal_of_its_message_confirms_it,
                    @store a_keep_alive_says_what_is_unsure_while_the_store_is_away,
                    a_renewal_by_a_command_counts_for_the_next_keep_alive,
                    a_lost_lease_is_told_at_once,
                    a_lost_lease_is_told_in_every_mode: Sharing + Reentry,
                    a_lease_that_was_released_and_kept_is_told_lost: RequestMemory,
                    a_command_releases_a_lease_and_keeps_its_lock: RequestMemory,
                    several_locks_are_taken_kept_and_released_in_the_order_of_the_commands,
                    an_election_is_led_proclaimed_and_observed,
                    a_watch_is_told_by_its_id_until_it_is_cancelled,
                    a_lease_that_ran_out_is_told_lost,
                    the_end_of_a_session_ends_its_waits_and_leaves_its_leases,
                    a_client_that_has_no_more_commands_gets_all_results,
                    a_close_gives_the_leases_back_and_is_answered_then,
                    a_close_without_release_leaves_the_leases,
                    a_stop_is_told_and_ends_the_session,
                    leases_beyond_the_limit_are_refused_and_the_session_lives_on,
                    commands_take_the_places_of_their_calls,
                    what_is_no_command_is_refused,
                    a_message_that_is_too_large_ends_the_session_and_the_server_lives_on,
                    @store a_session_that_breaks_off_goes_on_in_its_place_at_another_server: RequestMemory,
                    what_a_broken_session_does_not_ask_for_again_is_taken_out_after_the_grace: RequestMemory,
                    @store an_acquire_on_a_lower_number_is_superseded: RequestMemory,
                    a_session_that_its_client_ends_or_that_breaks_the_protocol_keeps_no_place: RequestMemory,
                    @store a_wait_of_a_broken_session_is_cancelled_by_its_request: RequestMemory,
                    an_acquire_all_that_was_resumed_and_fails_gives_back_what_it_holds: RequestMemory,
                    an_acquire_all_of_a_broken_session_keeps_what_it_holds: RequestMemory,
                    the_fields_of_an_open_are_bounded,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                grpc::looking {
                    get_lock_shows_holders_and_waiters: Sharing,
                    a_lock_that_nobody_uses_is_free,
                    @store a_list_comes_page_by_page,
                    @store a_watch_shows_the_state_and_then_each_change,
                    a_secret_is_shown_to_nobody_but_its_owner,
                    namespaces_show_their_store_and_limits,
                    health_is_answered_for_all_and_for_each_namespace,
                }
            );
            conformance_theme!(
                $scope,
                $open,
                $flags,
                grpc::stopping {
                    @store a_stop_answers_waiters_at_once,
                    @store a_retry_elsewhere_goes_on_in_the_place_of_a_wait_that_a_stop_ended: RequestMemory,
                    @store a_place_that_no_retry_asks_for_ends_before_the_store_is_closed: RequestMemory,
                    a_stop_ends_watches_at_once,
                    a_stop_waits_for_nobody_when_nothing_is_open,
                }
            );
        }
    };
}
