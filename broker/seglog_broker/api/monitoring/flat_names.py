"""The plain names of the request ``metrics``: what each counts, and when to look at it."""

from typing import Final

FLAT_NAMES: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "uptime_seconds",
        "seconds since the start, by the wall clock",
        "a counter fell: the broker was restarted",
    ),
    (
        "topics",
        "topics",
        "",
    ),
    (
        "partitions",
        "partitions in service, without those that are offline or recovering",
        "it is lower than the sum of the topics' partitions: `hello` names those that are offline",
    ),
    (
        "partitions_recovering",
        "partitions that are not served yet, see [After a crash](OPERATIONS.md#after-a-crash)",
        "it does not fall",
    ),
    (
        "partitions_read_only_until_room",
        "of these, the partitions that can be read while their recovery waits for disk space",
        "it is not 0: see [When the disk is full](OPERATIONS.md#when-the-disk-is-full)",
    ),
    (
        "recovery_ratio",
        "share of the bytes that recovery has read; 1 when there is nothing to recover",
        "",
    ),
    (
        "partitions_recovered_total",
        "partitions recovered after a crash, before or after the broker was ready",
        "",
    ),
    (
        "recovery_bytes_total",
        "bytes that worker processes have read for recovery",
        "",
    ),
    (
        "connections_open",
        "open connections",
        "it nears `seglog.connections.max`",
    ),
    (
        "connections_total",
        "connections accepted, without refused ones",
        "it rises fast: clients connect for every request",
    ),
    (
        "connections_idle_total",
        "connections closed because they were idle for `connections.max.idle.ms`",
        "",
    ),
    (
        "connections_cut_total",
        "connections closed because they blocked something; the log names both",
        "it rises: clients stop reading, or networks fail",
    ),
    (
        "open_files",
        "segment files, indexes and maps held open",
        (
            "it stays at `seglog.handles.max`: files are opened again and again; above it, see "
            "[Limits](OPERATIONS.md#limits)"
        ),
    ),
    (
        "answers_waiting",
        "replies that wait for their peer to read",
        "it stays high: consumers read more slowly than they fetch",
    ),
    (
        "request_memory_bytes",
        "bytes of memory in use for large requests, of `seglog.request.memory.max`",
        "it nears the limit",
    ),
    (
        "memory_waiting",
        "large requests that wait for such memory; their connections are not read",
        "it is not 0 for long",
    ),
    (
        "memory_waits_total",
        "how often a request had to wait for it",
        "it rises: raise `seglog.request.memory.max`, or have producers send less at once",
    ),
    (
        "disk_free_bytes",
        "free bytes on the disk, checked every five seconds, every second when little is left",
        "it nears `seglog.disk.free.soft.bytes`",
    ),
    (
        "disk_free_inodes",
        "free inodes of the disk; -1 if its file system has no such limit",
        "it nears 100",
    ),
    (
        "disk_full",
        "1 while the disk is full, else 0",
        "it is 1, see [When the disk is full](OPERATIONS.md#when-the-disk-is-full)",
    ),
    (
        "ballast_bytes",
        "size of the ballast file",
        "it is 0 while the disk is not full: there was no room for it",
    ),
    (
        "requests_<api>_total",
        (
            "requests received, by api; those of Kafka's clients are `kafka_<api>`, but for Produce, which counts as "
            "an `append`; pages over HTTP are `http_<page>`"
        ),
        "",
    ),
    (
        "requests_total",
        "all of them together",
        "",
    ),
    (
        "appends_<ack>_total",
        "batches appended, by the ack level asked for: `none`, `os`, `disk`",
        "",
    ),
    (
        "appends_total",
        "all of them together, without refused batches",
        "",
    ),
    (
        "append_bytes_total",
        "bytes of these batches",
        "",
    ),
    (
        "duplicates_total",
        "repeated batches of idempotent producers that were in the log already; neither written nor counted as appends",
        "it rises fast: connections break, or acks are late",
    ),
    (
        "segments_rolled_total",
        "segments closed because the next one was due",
        "it rises fast: `segment.bytes` or `segment.ms` is small, or an index too small for its segment",
    ),
    (
        "segments_expired_total",
        "segments that retention removed from their logs",
        "",
    ),
    (
        "expired_bytes_total",
        "bytes of batches in them; the files are removed after `file.delete.delay.ms`",
        "",
    ),
    (
        "scrubbed_segments_total",
        "closed segments that the scrub has read",
        "",
    ),
    (
        "scrubbed_bytes_total",
        "bytes of their `.log` files",
        "",
    ),
    (
        "scrub_findings_total",
        "damaged ranges, wrong indexes and other findings in them, each counted once",
        "it rises at all: see `seglog ping`, the log of the daemon and the disk",
    ),
    (
        "scrub_passes_total",
        "completed passes over all closed segments",
        "",
    ),
    (
        "scrub_pass_ratio",
        "share of the partitions that the current pass has finished; 1 between two, 0 before the first",
        "",
    ),
    (
        "scrub_last_pass_timestamp_seconds",
        "when the last pass ended (Unix time), 0 before the first",
        "it is much older than `seglog.scrub.interval.ms`: raise `seglog.scrub.bytes.per.second`",
    ),
    (
        "log_lines_lost_total",
        "lines of the daemon's log that were lost because standard error was not read, or its disk is full",
        "it is not 0: see [Running seglogd](OPERATIONS.md#running-seglogd)",
    ),
    (
        "fetch_bytes_total",
        "bytes of batches in replies to fetches",
        "",
    ),
    (
        "retention_next_loss_seconds",
        (
            "seconds until `retention.ms` deletes the oldest segment of some partition, by the last check of "
            "retention; -1 if it never deletes one"
        ),
        "it is less than the lag of readers: see [Is a reader too slow?](RETENTION.md#is-a-reader-too-slow)",
    ),
    (
        "fetches_waiting",
        "fetches that wait for records",
        "",
    ),
    (
        "fetches_waited_total",
        "how often a fetch had to wait; a fetch that was woken and found too little counts again",
        "it is far above the fetches: `min_bytes` is too small",
    ),
    (
        "errors_<code>_total",
        "error replies by code, in lower case, those of single partitions included",
        "`errors_offset_out_of_range_total` rises: retention has overtaken readers",
    ),
    (
        "errors_total",
        "all of them together",
        "it rises faster than usual",
    ),
    (
        "tls_handshakes_failed_total",
        "TLS handshakes that failed, or took longer than 10 s",
        (
            "it rises: clients do not trust the certificate, or somebody tries; the log has "
            "`tls_handshake_failed` with a reason"
        ),
    ),
    (
        "cold_reads_total",
        "reads from disk that a seek waited for, in a thread, because the bytes were not in memory",
        "consumers read far from the log end, or memory is short",
    ),
    (
        "fsyncs_total",
        "flushes to disk; one covers all the acks that wait for that partition, and all its files",
        "compare with `appends_disk_total`: more appends per flush mean better group commit",
    ),
    (
        "fsync_seconds_max",
        "longest flush",
        "producers with `disk` acks wait: the device is slow",
    ),
    (
        "loop_busy_seconds",
        "most processor time that the loop took between two polls of the network",
        "far below `loop_stall_seconds`, the machine was busy or slow; near it and above 0.1, please report it",
    ),
    (
        "loop_stall_seconds",
        "longest time between two polls of the network, in which no client is served",
        "above 0.01, all clients feel it; above 0.1, please report it",
    ),
)
"""Name, what it counts, when to look at it."""
