"""The families of metrics: their names, types, labels and meanings, from which docs/METRICS.md is made.

Names follow Prometheus's conventions: they end in their base unit, and those of counters in ``_total``. A name never
changes its meaning; one that is taken away is named in the changelog.
"""

from enum import Enum
from typing import Final, NamedTuple


class Kind(Enum):
    """Prometheus's types."""

    COUNTER = "counter"
    """Only grows, from the start of the broker on."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scope(Enum):
    """What a family has samples for, which bounds how many they are."""

    BROKER = "the broker"
    TOPICS = "topics and partitions"
    """At most those of ``seglog.metrics.topics.max`` topics, the largest first."""
    GROUPS = "groups"
    """At most those of ``seglog.metrics.groups.max`` groups, those with the largest lag first."""
    SHARES = "share groups"
    """As those of groups, of other ones."""


class Family(NamedTuple):
    """Samples that share a name and a meaning."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    scope: Scope = Scope.BROKER


_C: Final = Kind.COUNTER
_G: Final = Kind.GAUGE
_H: Final = Kind.HISTOGRAM
_API: Final = ("listener", "api")
_PARTITION: Final = ("topic", "partition")
_GROUP: Final = ("group", "topic", "partition")


def _of(scope: Scope, *families: Family) -> tuple[Family, ...]:
    return tuple(family._replace(scope=scope) for family in families)


FAMILIES: Final[tuple[Family, ...]] = (
    # --- The process --------------------------------------------------------------------------------------------------
    Family("seglog_build_info", _G, "Always 1; the labels tell what runs.", ("version", "build", "python")),
    Family("seglog_start_time_seconds", _G, "When the broker was started, since 1970."),
    Family("seglog_uptime_seconds", _G, "Since the start of the broker."),
    Family("seglog_problems", _G, "Problems that `seglog ping` and /healthz name."),
    Family("seglog_process_cpu_seconds_total", _C, "Processor time of the broker's process, of all its threads."),
    Family("seglog_process_resident_memory_bytes", _G, "Memory of the broker's process."),
    Family("seglog_log_lines_lost_total", _C, "Lines of the log that were dropped because nobody took them."),
    # --- Requests -----------------------------------------------------------------------------------------------------
    Family("seglog_requests_total", _C, "Requests received.", _API),
    Family(
        "seglog_request_errors_total",
        _C,
        "Errors in answers, by code; `api` is empty for one that ends a connection and answers nothing.",
        ("listener", "api", "code"),
    ),
    Family("seglog_request_bytes_total", _C, "Bytes of requests.", _API),
    Family("seglog_response_bytes_total", _C, "Bytes of answers.", _API),
    Family(
        "seglog_request_duration_seconds",
        _H,
        "From the moment a request is taken up to its answer; what it waits for is part of it, such as the disk at ack "
        "`disk`, and records in a long poll.",
        _API,
    ),
    Family("seglog_append_batches_total", _C, "Record batches appended, by the ack that was asked for.", ("ack",)),
    Family("seglog_append_bytes_total", _C, "Bytes of record batches appended."),
    Family("seglog_duplicates_total", _C, "Batches that were in the log already, and were not written again."),
    Family("seglog_fetch_bytes_total", _C, "Bytes of record batches sent."),
    Family("seglog_fetches_waiting", _G, "Fetches that wait for records now."),
    Family("seglog_fetches_waited_total", _C, "Fetches that had to wait for records."),
    Family("seglog_cold_reads_total", _C, "Reads that had to wait for the disk."),
    # --- Durability ---------------------------------------------------------------------------------------------------
    Family("seglog_not_durable_bytes", _G, "Bytes appended that a power cut would take: not on the disk yet."),
    Family("seglog_not_durable_seconds", _G, "The age of the oldest of them; 0 where there are none."),
    Family("seglog_fsync_duration_seconds", _H, "Time that each round of fsyncs took, which run side by side."),
    Family("seglog_fsyncs_total", _C, "Fsyncs done."),
    # --- The loop -----------------------------------------------------------------------------------------------------
    Family("seglog_loop_busy_seconds_total", _C, "Processor time of the event loop; its rate is its busy share."),
    Family("seglog_loop_turns_total", _C, "Turns of the event loop."),
    Family("seglog_loop_longest_turn_seconds", _G, "Processor time of the longest turn of the last minute."),
    Family(
        "seglog_loop_longest_stall_seconds", _G, "The longest time of the last minute without a look at the network."
    ),
    # --- What is bounded ----------------------------------------------------------------------------------------------
    Family("seglog_connections", _G, "Connections that are open.", ("listener",)),
    Family("seglog_connections_limit", _G, "Most connections at a time (seglog.connections.max)."),
    Family("seglog_connections_accepted_total", _C, "Connections accepted.", ("listener",)),
    Family("seglog_connections_ended_total", _C, "Connections that the broker ended.", ("reason",)),
    Family("seglog_request_memory_bytes", _G, "Memory taken by requests that are being received."),
    Family("seglog_request_memory_limit_bytes", _G, "Most of it (seglog.request.memory.max)."),
    Family("seglog_request_memory_waiting", _G, "Requests that wait for memory now."),
    Family("seglog_request_memory_waits_total", _C, "Requests that had to wait for memory."),
    Family("seglog_response_memory_bytes", _G, "Memory taken by responses that are not sent yet."),
    Family("seglog_answers_waiting", _G, "Answers that their peers have not taken yet."),
    Family("seglog_open_files", _G, "Files of segments and indexes that are open."),
    Family("seglog_open_files_limit", _G, "Most of them (seglog.handles.max)."),
    # --- The log directory --------------------------------------------------------------------------------------------
    Family("seglog_topics", _G, "Topics."),
    Family("seglog_partitions", _G, "Partitions by state: serving, recovering, offline, read_only.", ("state",)),
    Family(
        "seglog_awaited_segments", _G, "Closed segments that are still fetched from the backup it was started from."
    ),
    Family("seglog_awaited_bytes", _G, "Bytes of them."),
    Family("seglog_recovery_ratio", _G, "How much of the recovery under way is done, 0 to 1; 1 without one."),
    Family("seglog_partitions_recovered_total", _C, "Partitions recovered since the start."),
    Family("seglog_recovery_bytes_total", _C, "Bytes read to recover them."),
    Family("seglog_disk_size_bytes", _G, "Size of the file system of the log directory."),
    Family("seglog_disk_free_bytes", _G, "Free bytes of it."),
    Family("seglog_disk_free_inodes", _G, "Free inodes of it; -1 where it does not count them."),
    Family("seglog_disk_full", _G, "1 while appends are refused because the disk is full, else 0."),
    Family(
        "seglog_disk_full_in_seconds",
        _G,
        "When the disk will be full if free space goes on to shrink as it did in the last hour; +Inf if it does not "
        "shrink. Retention makes room in leaps, so that this errs on the early side.",
    ),
    Family("seglog_ballast_bytes", _G, "Bytes that are kept free for when the disk is full."),
    Family("seglog_segments_rolled_total", _C, "Segments rolled."),
    Family("seglog_segments_expired_total", _C, "Segments that retention has deleted."),
    Family("seglog_expired_bytes_total", _C, "Bytes of their .log files."),
    Family(
        "seglog_retention_next_loss_seconds", _G, "Until retention deletes the next segment; +Inf if none is known."
    ),
    Family("seglog_compactions_total", _C, "Rounds of compaction that ended, by outcome: done, failed.", ("outcome",)),
    Family("seglog_compaction_read_bytes_total", _C, "Bytes of segments that compaction has read."),
    Family("seglog_compaction_written_bytes_total", _C, "Bytes of segments that compaction has written."),
    Family("seglog_scrubbed_segments_total", _C, "Segments whose checksums were verified in the background."),
    Family("seglog_scrubbed_bytes_total", _C, "Bytes of them."),
    Family("seglog_scrub_passes_total", _C, "Passes of the scrub over all segments that ended."),
    Family("seglog_scrub_pass_ratio", _G, "How much of its pass is done, 0 to 1; 1 between two, 0 before the first."),
    Family("seglog_scrub_last_pass_timestamp_seconds", _G, "When its last pass ended, since 1970; 0 before the first."),
    Family("seglog_scrub_findings_total", _C, "What the scrub has found wrong."),
    Family("seglog_damaged_ranges", _G, "Ranges of bytes in segments that are known to be damaged."),
    Family("seglog_clock_untrusted", _G, "1 while retention waits because the clock has leapt, else 0."),
    # --- The continuous backup ----------------------------------------------------------------------------------------
    Family(
        "seglog_backup_loss_seconds",
        _G,
        "Time of which records would be lost if the disk died now: that since the state that the place has. 0 where no "
        "record would be. Before the first state since the start is published, the time since the start. This and the "
        "others only with `seglog.backup.to`.",
    ),
    Family("seglog_backup_loss_limit_seconds", _G, "The most of it that was asked for (seglog.backup.lag.ms)."),
    Family("seglog_backup_loss_records", _G, "Records that would be lost if the disk died now; those of this start."),
    Family("seglog_backup_loss_bytes", _G, "Bytes of their batches."),
    Family("seglog_backup_held_up", _G, "1 while nothing can be published; `seglog ping` says why. Else 0."),
    Family(
        "seglog_backup_published_timestamp_seconds",
        _G,
        "The moment of the state that the place has, since 1970; 0 before this start has published one.",
    ),
    Family("seglog_backup_written_bytes_total", _C, "Bytes sent to the place."),
    # --- Transactions -------------------------------------------------------------------------------------------------
    Family("seglog_transactional_ids", _G, "Transactional ids that are known."),
    Family("seglog_transactions_open", _G, "Transactions that are open, or that are being ended."),
    Family(
        "seglog_transaction_oldest_seconds",
        _G,
        "The age of the oldest of them; 0 where there are none. Readers at read_committed do not get beyond its first "
        "record.",
    ),
    Family(
        "seglog_transactions_ended_total",
        _C,
        "Transactions that ended in all of their partitions, by outcome: committed, aborted, timed_out.",
        ("outcome",),
    ),
    Family("seglog_transaction_markers_waiting", _G, "Markers of transactions that are being ended, to be written."),
    Family(
        "seglog_transactions_held_up",
        _G,
        "Transactions whose markers could not be written at the last try; `seglog ping` says why.",
    ),
    Family(
        "seglog_transactions_hanging",
        _G,
        "Partitions in which a transaction is open that no transactional id will end; `seglog ping` names them.",
    ),
    Family(
        "seglog_partitions_held_back",
        _G,
        "Partitions whose last stable offset is below the log end, because a transaction is open there.",
    ),
    # --- Who comes in -------------------------------------------------------------------------------------------------
    Family("seglog_authentications_total", _C, "Clients that have proven who they are.", ("listener", "mechanism")),
    Family("seglog_authentication_failures_total", _C, "Proofs that were refused.", ("listener", "mechanism")),
    Family("seglog_authorization_refusals_total", _C, "Requests refused because their client may not administer."),
    Family("seglog_quota_throttles_total", _C, "Requests, or connections, after which a client waited.", ("quota",)),
    Family("seglog_quota_throttle_seconds_total", _C, "Seconds that clients were to wait for that.", ("quota",)),
    Family("seglog_connections_muted", _G, "Connections that are not read now because of a quota of their client."),
    Family("seglog_tls_handshakes_failed_total", _C, "Handshakes of TLS that failed."),
    Family("seglog_certificate_expiry_timestamp_seconds", _G, "When the certificate ends, since 1970; only with TLS."),
    # --- Topics -------------------------------------------------------------------------------------------------------
    *_of(
        Scope.TOPICS,
        Family("seglog_partition_size_bytes", _G, "Bytes of the segments.", _PARTITION),
        Family("seglog_partition_segments", _G, "Segments.", _PARTITION),
        Family("seglog_partition_log_start_offset", _G, "The first offset that can be read.", _PARTITION),
        Family("seglog_partition_log_end_offset", _G, "The offset that the next record gets.", _PARTITION),
        Family("seglog_partition_durable_offset", _G, "Records below it are on the disk.", _PARTITION),
        Family(
            "seglog_partition_dirty_ratio",
            _G,
            "The share of bytes that compaction has not been over; only of compacted topics.",
            _PARTITION,
        ),
        Family(
            "seglog_topic_expired_on_arrival_total",
            _C,
            "Records appended whose timestamps were past retention.ms already: they go with the next check.",
            ("topic",),
        ),
    ),
    Family("seglog_topics_left_out", _G, "Topics without samples of their own (seglog.metrics.topics.max)."),
    # --- Groups -------------------------------------------------------------------------------------------------------
    *_of(
        Scope.GROUPS,
        Family("seglog_group_members", _G, "Members; 0 for a dead or simple group.", ("group",)),
        Family("seglog_group_state", _G, "1 for the state that the group is in.", ("group", "state")),
        Family("seglog_group_rebalances_total", _C, "Generations or epochs begun since the start.", ("group",)),
        Family("seglog_group_committed_offset", _G, "The committed offset.", _GROUP),
        Family("seglog_group_lag", _G, "Records between the committed offset and the log end.", _GROUP),
        Family(
            "seglog_group_lag_seconds",
            _G,
            "Age of the next record that the group has not committed, by its timestamp; 0 at the log end.",
            _GROUP,
        ),
        Family(
            "seglog_group_time_to_loss_seconds",
            _G,
            "Until retention deletes the next record that the group has not committed; 0 if it is gone already, +Inf "
            "if nothing is to delete it.",
            _GROUP,
        ),
    ),
    Family("seglog_groups_left_out", _G, "Groups without samples of their own (seglog.metrics.groups.max)."),
    # --- Share groups -------------------------------------------------------------------------------------------------
    *_of(
        Scope.SHARES,
        Family("seglog_share_records_waiting", _G, "Records that members can be given.", _GROUP),
        Family("seglog_share_records_in_flight", _G, "Records that members have, and have not acknowledged.", _GROUP),
        Family("seglog_share_records_archiving", _G, "Records whose dead letters are not written yet.", _GROUP),
        Family("seglog_share_oldest_seconds", _G, "Age of the oldest of all these records; 0 without any.", _GROUP),
        Family("seglog_share_time_to_loss_seconds", _G, "Until retention deletes that; +Inf if nothing does.", _GROUP),
        Family("seglog_share_deliveries_max", _G, "The most deliveries of one of them; from 2 on it failed.", _GROUP),
        Family("seglog_share_accepted_total", _C, "Records that are done.", _GROUP),
        Family("seglog_share_released_total", _C, "Records that members gave back, to be tried again.", _GROUP),
        Family("seglog_share_rejected_total", _C, "Records that members refused for good.", _GROUP),
        Family("seglog_share_expired_total", _C, "Records whose lock ran out before they were acknowledged.", _GROUP),
        Family("seglog_share_exceeded_total", _C, "Records given up after their last delivery.", _GROUP),
        Family("seglog_share_redelivered_total", _C, "Deliveries of records that had been delivered before.", _GROUP),
    ),
    Family("seglog_share_groups_left_out", _G, "Share groups without samples of their own."),
    Family("seglog_share_sessions", _G, "Share sessions: members of share groups that fetch."),
    Family("seglog_share_fetches_waiting", _G, "Fetches of share groups that wait for records now."),
    Family("seglog_share_state_pruned_total", _C, "Records of __share_group_state that no state needed any more."),
    Family("seglog_dead_letters_written_total", _C, "Dead letters that are on the disk."),
    Family("seglog_dead_letters_given_up_total", _C, "Records that were archived though theirs could not be written."),
    Family("seglog_dead_letters_held_up", _G, "Those that could not be written at the last try: see `seglog ping`."),
)
"""All of them, in the order in which they are shown."""

FAMILIES_BY_NAME: Final = {family.name: family for family in FAMILIES}

STANDBY_FAMILIES: Final[tuple[Family, ...]] = (
    Family("seglog_standby_applied_timestamp_seconds", _G, "The moment that the standby has, since 1970; 0 for none."),
    Family("seglog_standby_lag_seconds", _G, "How far that is behind the newest moment in the place; NaN for none."),
    Family("seglog_standby_received_bytes_total", _C, "Bytes that the standby has written since its start."),
    Family("seglog_standby_held_up", _G, "1 while something keeps the standby from following, which /readyz names."),
)
"""Of a standby, which serves nothing but these, in their order."""
