"""Each limit, and the test that reaches it, because a setting that limits nothing would go unnoticed.

A setting is a limit by its name. A setting that is only the default of a topic's setting is reached as the topic's.
"""

import re
from pathlib import Path

import pytest

from broker.settings.config import TOPIC_DEFAULTS, BrokerConfig, TopicConfig
from broker.settings.group_config import GroupConfig
from broker.settings.transaction_config import TransactionConfig
from idgen.settings import settings_of

TESTS = Path(__file__).parent
LIMIT = re.compile(r"\b(max|min|limit)\b")
# Bounds of the broker's own work, or of its demands; they do not limit its clients.
NO_LIMITS = {
    "min.cleanable.dirty.ratio",
    "log.cleaner.min.cleanable.ratio",
    "min.insync.replicas",
    "replica.fetch.max.bytes",
    "replica.fetch.min.bytes",
    "replica.fetch.response.max.bytes",
    "replica.fetch.wait.max.ms",
    "replica.lag.time.max.ms",
    "group.min.session.timeout.ms",
    "transaction.state.log.min.isr",
}
EVERY_ERROR = "test_every_error.py::test_an_error_is_answered_in_every_version_that_knows_it"
REACHED = {
    "connections.max.idle.ms": "engine/test_engine.py::test_half_a_frame_and_silence_ends_by_the_idle_timeout",
    "fetch.max.bytes": "handlers/test_fetch.py::test_and_the_brokers",
    "flakelog.authentications.max": (
        "engine/test_authenticator.py::test_so_many_log_in_at_once_and_the_others_wait_for_them"
    ),
    "flakelog.authentications.max.per.address": (
        "engine/test_authenticator.py::test_a_closed_connection_lets_another_begin"
    ),
    "flakelog.audit.lines.max": (
        "security/authorization/test_audit_log.py::"
        "test_a_second_has_a_few_lines_and_the_next_one_says_how_many_were_left_out"
    ),
    "flakelog.auto.create.topics.max": "handlers/test_many_topics.py::test_how_many_a_request_makes_is_a_setting",
    "flakelog.fetch.session.partitions.max": (
        "services/test_fetch_session.py::test_the_partitions_of_all_sessions_are_limited"
    ),
    "flakelog.groups.max": "group/test_join.py::test_groups_are_limited",
    "flakelog.journal.max.bytes": (
        "log/test_journal.py::test_the_journal_is_bounded_and_of_use_again_when_segments_are_synced"
    ),
    "flakelog.marker.requests.max": (
        "handlers/test_many_markers.py::"
        "test_past_the_limit_of_requests_for_many_markers_the_next_is_refused_and_can_be_asked_again"
    ),
    "flakelog.max.acls": EVERY_ERROR,
    "flakelog.max.batch.records": "log/validation/test_batch.py::test_more_records_than_the_limit_are_refused",
    "flakelog.max.client.quotas": EVERY_ERROR,
    "flakelog.max.delayed.operations": (
        "handlers/test_produce_durable.py::test_past_the_limit_of_delayed_requests_the_timeout_is_answered_immediately"
    ),
    "flakelog.max.inflight.requests.per.connection": (
        "engine/test_engine.py::test_past_the_most_requests_in_flight_reading_stops_and_goes_on_when_one_is_answered"
    ),
    "flakelog.max.new.logs.at.once": "handlers/test_many_partitions.py::test_how_many_are_made_in_a_step_is_a_setting",
    "flakelog.max.open.files": "log/storage/test_open_files.py::test_at_most_so_many_files_are_open",
    "flakelog.max.partitions": (
        "handlers/test_create_partitions.py::test_partitions_past_the_limit_of_all_topics_are_refused"
    ),
    "flakelog.max.open.segments": (
        "log/test_closed_segment.py::test_a_segment_that_is_on_the_disk_is_closed_and_all_can_be_read_with_few_open"
    ),
    "flakelog.max.opened.batch.records": (
        "log/validation/test_topic_rules.py::test_a_batch_of_more_records_than_are_opened_is_refused"
    ),
    "flakelog.max.cold.request.bytes": (
        "engine/test_engine.py::test_a_request_of_more_items_than_the_limit_is_not_decoded"
    ),
    "flakelog.max.request.items": (
        "engine/test_engine.py::test_a_request_of_more_items_than_the_limit_is_not_decoded"
    ),
    "flakelog.max.request.partitions": (
        "engine/test_engine.py::test_a_request_of_more_items_than_the_limit_is_not_decoded"
    ),
    "flakelog.max.request.templates": (
        "wire/test_produce_template.py::test_past_the_most_templates_those_unused_for_longest_are_dropped"
    ),
    "flakelog.max.producers.per.partition": (
        "log/test_producer_state.py::test_past_the_limit_the_least_recent_producer_is_evicted"
    ),
    "flakelog.max.id.wait.ms": "engine/test_clock_behind.py::test_no_request_waits_past_the_setting",
    "flakelog.max.queued.bytes.per.connection": (
        "engine/test_engine.py::test_a_reader_that_leaves_its_answers_is_not_read_from_until_it_drains"
    ),
    "flakelog.max.quota.clients": "quota/test_quota_manager.py::test_only_so_many_uses_are_remembered",
    "flakelog.max.record.headers": (
        "log/validation/test_record_check.py::test_a_limit_on_headers_names_its_setting"
    ),
    "flakelog.max.scram.credentials": EVERY_ERROR,
    "flakelog.max.unpacked.batch.bytes": (
        "log/validation/test_topic_rules.py::test_a_batch_that_unpacks_to_more_than_the_bound_is_refused"
    ),
    "flakelog.metrics.group.partitions.max": (
        "services/test_group_lag.py::test_positions_past_the_limit_are_counted"
    ),
    "flakelog.new.partitions.max": (
        "handlers/test_many_topics.py::test_how_many_partitions_a_request_makes_is_a_setting"
    ),
    "flakelog.tls.handshakes.max": (
        "security/test_handshakes.py::test_handshakes_begin_at_once_while_there_is_room"
    ),
    "flakelog.tls.handshakes.max.per.address": (
        "security/test_handshakes.py::test_a_storm_of_one_address_delays_no_other"
    ),
    "flakelog.transactional.id.pattern.steps.max": EVERY_ERROR,
    "flakelog.transactional.ids.max": (
        "handlers/test_transaction_errors.py::test_past_the_limit_another_transactional_id_is_refused"
    ),
    "group.max.session.timeout.ms": "group/test_join.py::test_a_session_timeout_outside_the_limits_is_refused",
    "group.max.size": "group/test_join.py::test_a_full_group_takes_nobody_in",
    "log.cleaner.io.max.bytes.per.second": (
        "log/compaction/test_cleaner_schedule.py::test_the_cleaner_reads_and_writes_no_more_in_a_second_than_it_may"
    ),
    "max.compaction.lag.ms": (
        "log/compaction/test_cleaner_schedule.py::test_a_record_that_is_overdue_is_cleaned_whatever_the_ratio"
    ),
    "max.connection.creation.rate": (
        "engine/test_connection_limits.py::test_connections_that_come_too_fast_pause_the_accepting"
    ),
    "max.connections": (
        "engine/test_connection_limits.py::test_a_connection_that_is_closed_makes_room_even_if_it_was_one_too_many"
    ),
    "max.connections.per.ip": "engine/test_connection_limits.py::test_an_address_has_so_many_connections_and_no_more",
    "max.connections.per.ip.overrides": (
        "engine/test_connection_limits.py::test_some_addresses_have_a_limit_of_their_own"
    ),
    "max.incremental.fetch.session.cache.slots": (
        "handlers/test_fetch_sessions.py::test_a_full_cache_gives_no_session_and_all_answers"
    ),
    "max.message.bytes": (
        "log/validation/test_batch.py::test_a_batch_larger_than_the_topic_takes_is_refused_by_its_size"
    ),
    "max.request.partition.size.limit": (
        "handlers/test_describe_topic_partitions.py::test_all_topics_come_in_pages_each_partition_once"
    ),
    "message.timestamp.after.max.ms": "handlers/test_produce.py::test_a_time_too_far_ahead",
    "message.timestamp.before.max.ms": (
        "log/validation/test_topic_rules.py::"
        "test_a_time_past_the_bound_behind_is_refused_though_the_first_and_the_newest_are_good"
    ),
    "min.compaction.lag.ms": "log/compaction/test_cleaner_schedule.py::test_records_younger_than_the_lag_stay",
    "offset.metadata.max.bytes": (
        "group/test_offsets.py::test_metadata_that_is_too_long_is_refused_for_its_partition_alone"
    ),
    "queued.max.request.bytes": (
        "engine/test_connection_limits.py::"
        "test_requests_that_are_not_whole_claim_memory_and_past_the_limit_are_not_read"
    ),
    "socket.request.max.bytes": "wire/test_frame_decoder.py::test_a_frame_past_the_limit_is_refused_at_its_length",
    "transaction.max.timeout.ms": EVERY_ERROR,
}


def limits():
    defaults = {*TOPIC_DEFAULTS.values()}
    names = []
    for config in (BrokerConfig, TopicConfig, GroupConfig, TransactionConfig):
        for setting in settings_of(config):
            is_default = config is BrokerConfig and setting.field in defaults
            if LIMIT.search(setting.name) and setting.name not in NO_LIMITS and not is_default:
                names.append(setting.name)
    return names


def test_each_limit_is_reached_by_a_test():
    assert sorted(REACHED) == sorted(limits())


@pytest.mark.parametrize("name", REACHED)
def test_the_test_that_reaches_it_is_there(name):
    path, _, function = REACHED[name].partition("::")
    assert f"def {function}(" in (TESTS / path).read_text()
