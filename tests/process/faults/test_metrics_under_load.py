"""Every documented metric of a daemon under a load, compared with what the load did."""

import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, Final

import pytest
from cryptography import x509
from kafka import KafkaProducer

import seglog
from seglog.client import Client
from seglog_broker.api.monitoring.families import FAMILIES, Kind
from seglog_protocol.messages import MetricBuckets, MetricFamily
from tests.process.deploy.workload import damage
from tests.process.faults.secured_daemon import Secured, secured
from tests.processes import Daemon, daemon, wait_until
from tests.support import each_case

RECORDS: Final = 300
"""Sent to ``plain``, one request each, at ack disk."""
KAFKA_RECORDS: Final = 20
COMPACTED: Final = 200
OLD: Final = 7
HOUR_MS: Final = 3_600_000
PARTITIONS: Final = {"plain": 3, "compacted": 1, "old": 1, "kafka": 1}


class Seen:
    """What a daemon told, and when the load began and ended."""

    def __init__(self, families: list[MetricFamily], began: float, pid: int) -> None:
        self.families = {family.name: family for family in families}
        self.began = began
        self.now = time.time()
        self.pid = pid
        self.certificate_ends = 0.0
        """In seconds since 1970, where there is one."""

    def of(self, name: str, *labels: str) -> float:
        """The one value with these labels."""
        found = self.families[name].value(*labels)
        assert isinstance(found, int | float), (name, labels, self.families[name].samples)
        return found

    def all(self, name: str) -> dict[tuple[str, ...], float]:
        return {tuple(s.labels): s.value for s in self.families[name].samples if isinstance(s.value, int | float)}

    def buckets(self, name: str, *labels: str) -> MetricBuckets:
        found = self.families[name].value(*labels)
        assert isinstance(found, MetricBuckets), (name, labels)
        return found


def is_count(least: float, most: float = math.inf) -> Callable[[Seen, str], bool]:
    """The family without labels is within these bounds."""
    return lambda seen, name: least <= seen.of(name) <= most


def has_none(seen: Seen, name: str) -> bool:
    """Nothing of the kind has happened, or there is no such thing in this daemon."""
    return all(value == 0 for value in seen.all(name).values())


def partitions_are(expected: Mapping[tuple[str, str], float]) -> Callable[[Seen, str], bool]:
    return lambda seen, name: expected.items() <= seen.all(name).items()


ENDS: Final = {("plain", "0"): RECORDS, ("plain", "1"): 0, ("old", "0"): OLD, ("compacted", "0"): COMPACTED}

NOTHING_OF: Final = """
    problems log_lines_lost_total duplicates_total request_memory_waiting partitions_recovered_total
    recovery_bytes_total disk_full scrub_findings_total damaged_ranges clock_untrusted transactional_ids
    transactions_open transaction_oldest_seconds transaction_markers_waiting transactions_held_up
    transactions_hanging partitions_held_back authorization_refusals_total tls_handshakes_failed_total
    topics_left_out groups_left_out
"""
ANY_NUMBER_OF: Final = """
    cold_reads_total request_memory_waits_total disk_full_in_seconds segments_expired_total
    expired_bytes_total retention_next_loss_seconds scrubbed_segments_total scrubbed_bytes_total
    scrub_passes_total
"""
NONE_OF: Final = """
    authentications_total authentication_failures_total certificate_expiry_timestamp_seconds
"""
SOME_OF: Final = """
    fetches_waited_total open_files
"""


def all_of(names: str, expected: Callable[[Seen, str], bool]) -> dict[str, Callable[[Seen, str], bool]]:
    return {f"seglog_{name}": expected for name in names.split()}


EXPECTED: Final[Mapping[str, Callable[[Seen, str], bool]]] = {
    **all_of(NOTHING_OF, is_count(0, 0)),
    **all_of(ANY_NUMBER_OF, is_count(0)),
    **all_of(NONE_OF, has_none),
    **all_of(SOME_OF, is_count(1)),
    "seglog_build_info": lambda s, n: [(v, len(labels)) for labels, v in s.all(n).items()] == [(1, 3)],
    "seglog_start_time_seconds": lambda s, n: s.began - 1 <= s.of(n) <= s.now,
    "seglog_uptime_seconds": lambda s, n: 0 < s.of(n) <= s.now - s.began + 1,
    "seglog_process_cpu_seconds_total": is_count(0.1, 600),
    "seglog_process_resident_memory_bytes": is_count(10 * 2**20, 2**30),
    "seglog_requests_total": lambda s, n: (
        s.of(n, "native", "append") >= RECORDS and s.of(n, "PLAINTEXT", "Produce") == KAFKA_RECORDS
    ),
    "seglog_request_errors_total": lambda s, n: (
        s.of(n, "native", "topics", "UNKNOWN_TOPIC_OR_PARTITION") >= 1
        if ("native", "topics", "UNKNOWN_TOPIC_OR_PARTITION") in s.all(n)
        else sum(s.all(n).values()) >= 1
    ),
    "seglog_request_bytes_total": lambda s, n: s.of(n, "native", "append") > RECORDS * 61,
    "seglog_response_bytes_total": lambda s, n: (
        s.of(n, "native", "append") > RECORDS * 8 and s.of(n, "native", "fetch") > RECORDS
    ),
    "seglog_request_duration_seconds": lambda s, n: (
        s.buckets(n, "native", "append").count >= RECORDS
        and 0 < s.buckets(n, "native", "append").sum < 600
        and s.buckets(n, "PLAINTEXT", "Produce").count == KAFKA_RECORDS
    ),
    "seglog_append_batches_total": lambda s, n: RECORDS < s.of(n, "disk") < 10 * RECORDS and s.of(n, "os") == OLD,
    "seglog_append_bytes_total": is_count(RECORDS * 61, 10**8),
    "seglog_fetch_bytes_total": is_count(RECORDS, 10**8),
    "seglog_fetches_waiting": is_count(1, 10),
    "seglog_not_durable_bytes": is_count(0, 10**7),
    "seglog_not_durable_seconds": is_count(0, 600),
    "seglog_fsync_duration_seconds": lambda s, n: 1 <= s.buckets(n).count <= s.of("seglog_fsyncs_total"),
    "seglog_fsyncs_total": is_count(10),
    "seglog_loop_busy_seconds_total": lambda s, n: 0 < s.of(n) <= s.of("seglog_process_cpu_seconds_total") + 1,
    "seglog_loop_turns_total": is_count(RECORDS),
    "seglog_loop_longest_turn_seconds": is_count(1e-6, 60),
    "seglog_loop_longest_stall_seconds": is_count(1e-6, 600),
    "seglog_connections": lambda s, n: s.of(n, "native") >= 2 and s.of(n, "PLAINTEXT") >= 1,
    "seglog_connections_limit": is_count(16),
    "seglog_connections_accepted_total": lambda s, n: s.of(n, "native") >= s.of("seglog_connections", "native"),
    "seglog_connections_ended_total": lambda s, n: sum(s.all(n).values()) >= 1,
    "seglog_request_memory_bytes": is_count(0, 2**28),
    "seglog_request_memory_limit_bytes": is_count(2**20),
    "seglog_response_memory_bytes": is_count(0, 2**29),
    "seglog_answers_waiting": is_count(0, 100),
    "seglog_open_files_limit": lambda s, n: s.of(n) >= s.of("seglog_open_files"),
    "seglog_topics": is_count(len(PARTITIONS) + 1, len(PARTITIONS) + 1),
    "seglog_partitions": lambda s, n: (
        s.of(n, "serving") >= sum(PARTITIONS.values())
        and all(s.of(n, state) == 0 for state in ("recovering", "offline", "read_only"))
    ),
    "seglog_recovery_ratio": is_count(1, 1),
    "seglog_disk_size_bytes": is_count(2**20),
    "seglog_disk_free_bytes": lambda s, n: 0 < s.of(n) <= s.of("seglog_disk_size_bytes"),
    "seglog_disk_free_inodes": is_count(-1),
    "seglog_ballast_bytes": is_count(0, 2**25),
    "seglog_segments_rolled_total": is_count(2),
    "seglog_compactions_total": lambda s, n: s.of(n, "done") >= 1,
    "seglog_compaction_read_bytes_total": is_count(COMPACTED * 61),
    "seglog_compaction_written_bytes_total": lambda s, n: 0 < s.of(n) < s.of("seglog_compaction_read_bytes_total"),
    "seglog_scrub_pass_ratio": is_count(0, 1),
    "seglog_scrub_last_pass_timestamp_seconds": lambda s, n: s.of(n) == 0 or s.began - 60 <= s.of(n) <= s.now,
    "seglog_transactions_ended_total": lambda s, n: s.of(n, "committed") == s.of(n, "aborted") == 0,
    "seglog_partition_size_bytes": lambda s, n: s.all(n)["plain", "0"] >= RECORDS * 61 and s.all(n)["plain", "1"] == 0,
    "seglog_partition_segments": lambda s, n: s.all(n)["plain", "0"] == 1 and s.all(n)["compacted", "0"] >= 1,
    "seglog_partition_log_start_offset": lambda s, n: s.all(n)["plain", "0"] == 0,
    "seglog_partition_log_end_offset": partitions_are(ENDS),
    "seglog_partition_durable_offset": partitions_are({("plain", "0"): RECORDS}),
    "seglog_partition_dirty_ratio": lambda s, n: (
        0 <= s.all(n)["compacted", "0"] <= 1 and ("plain", "0") not in s.all(n)
    ),
    "seglog_topic_expired_on_arrival_total": lambda s, n: s.of(n, "old") == OLD and s.of(n, "plain") == 0,
    "seglog_group_members": lambda s, n: s.all(n) == {("dead",): 0, ("live",): 1},
    "seglog_group_state": lambda s, n: s.all(n) == {("dead", "Empty"): 1, ("live", "Stable"): 1},
    "seglog_group_rebalances_total": lambda s, n: s.of(n, "dead") == 0 and s.of(n, "live") >= 1,
    "seglog_group_committed_offset": lambda s, n: s.of(n, "dead", "plain", "0") == 100,
    "seglog_group_lag": lambda s, n: s.of(n, "dead", "plain", "0") == RECORDS - 100,
    "seglog_group_lag_seconds": lambda s, n: 0 < s.of(n, "dead", "plain", "0") <= s.now - s.began + 60,
    "seglog_group_time_to_loss_seconds": lambda s, n: 6 * 86_400 < s.of(n, "dead", "plain", "0") <= 8 * 86_400,
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Seen]]:
    """A daemon, and what it told while readers still waited and a group was behind."""
    began = time.time()
    settings = [
        "listeners=PLAINTEXT://127.0.0.1:0",
        "seglog.http.listen=127.0.0.1:0",
        "log.initial.task.delay.ms=0",
        "log.cleaner.backoff.ms=100",
        "log.retention.check.interval.ms=300000",
    ]
    options = [part for setting in settings for part in ("--set", setting)]
    with (
        daemon(tmp_path_factory.mktemp("loaded") / "data", *options) as running,
        seglog.connect(running.address) as client,
        closing(KafkaProducer(bootstrap_servers=f"127.0.0.1:{running.kafka_port}", acks="all")) as sender,
    ):
        _produce(client, sender)
        with pytest.raises(seglog.SeglogError):
            client.describe_topic("nothing")
        with socket.create_connection(("127.0.0.1", running.port)) as wrong:
            wrong.sendall(b"\xff" * 64)
            wrong.settimeout(30)
            while wrong.recv(4096):
                pass
        client.reset_group("dead", 100, {"plain": [0]})
        with client.consumer("plain", group="live", start="earliest") as consumer:
            read = iter(consumer)
            for _ in range(RECORDS):
                next(read)
            consumer.commit()
            with seglog.connect(running.address) as other, other.consumer("plain", start="latest") as waiting:
                wait_for_all(client, waiting)
                assert running.process is not None
                yield running, Seen(client.samples(), began, running.process.pid)


def _produce(client: Client, sender: Any) -> None:
    client.create_topic("plain", PARTITIONS["plain"])
    client.create_topic(
        "compacted", 1, {"cleanup.policy": "compact", "segment.bytes": 4096, "min.cleanable.dirty.ratio": 0.01}
    )
    client.create_topic("old", 1, {"retention.ms": HOUR_MS})
    client.create_topic("kafka", 1)
    with client.producer("plain", linger_ms=0) as producer:
        for number in range(RECORDS):
            producer.send(f"record {number}", partition=0).result(60)
    with client.producer("compacted") as producer:
        for number in range(COMPACTED):
            producer.send(f"{number}" * 10, key=f"{number % 5}", partition=0).result(60)
    with client.producer("old", ack="os", linger_ms=0) as producer:
        for number in range(OLD):
            producer.send(f"{number}", timestamp=round(time.time() * 1000) - 2 * HOUR_MS).result(60)
    for number in range(KAFKA_RECORDS):
        sender.send("kafka", f"{number}".encode(), partition=0).get(60)


def wait_for_all(client: Client, waiting: Any) -> None:
    """Until a fetch waits, compaction has run, and the group that is behind is measured."""

    def wait() -> None:
        with suppress(seglog.SeglogError):
            next(iter(waiting), None)

    threading.Thread(target=wait, daemon=True).start()

    def is_there() -> bool:
        families = {family.name: family for family in client.samples()}
        lag = families["seglog_group_lag_seconds"].value("dead", "plain", "0")
        compacted = families["seglog_compactions_total"].value("done")
        return bool(
            lag is not None
            and compacted
            and families["seglog_fetches_waiting"].value()
            and families["seglog_partition_dirty_ratio"].value("compacted", "0") is not None
            and families["seglog_compaction_written_bytes_total"].value()
        )

    wait_until(is_there, "what is measured in the background")


def test_every_documented_family_has_an_expectation() -> None:
    assert EXPECTED.keys() == {family.name for family in FAMILIES}


@pytest.mark.soak
@each_case("name", [family.name for family in FAMILIES])
def test_a_metric_is_what_the_load_makes_plausible(loaded: tuple[Daemon, Seen], name: str) -> None:
    _, seen = loaded
    assert EXPECTED[name](seen, name), seen.families[name]


@pytest.mark.soak
def test_counters_never_fall_and_labels_stay_few(loaded: tuple[Daemon, Seen]) -> None:
    running, seen = loaded
    with seglog.connect(running.address) as client:
        later = Seen(client.samples(), seen.began, seen.pid)
    for family in FAMILIES:
        if family.kind is Kind.COUNTER:
            after = later.all(family.name)
            assert all(after[labels] >= value for labels, value in seen.all(family.name).items()), family.name
        assert len(later.families[family.name].samples) < 500, family.name


# --- A broker that was killed, has a damaged segment, and is attacked -------------------------------------------------

WRONG_PASSWORDS: Final = 3
HURT: Final = "hurt"
BRIEF: Final = "brief"
"""A topic whose records expire at once."""

IN_TROUBLE: Final[Mapping[str, Callable[[Seen, str], bool]]] = {
    "seglog_problems": is_count(1, 10),
    "seglog_partitions_recovered_total": is_count(1, 10),
    "seglog_recovery_bytes_total": is_count(RECORDS * 10, 10**7),
    "seglog_segments_expired_total": is_count(1, 1000),
    "seglog_expired_bytes_total": is_count(61, 10**7),
    "seglog_scrubbed_segments_total": is_count(2),
    "seglog_scrubbed_bytes_total": lambda s, n: s.of(n) >= 61 * s.of("seglog_scrubbed_segments_total"),
    "seglog_scrub_passes_total": is_count(1),
    "seglog_scrub_pass_ratio": is_count(0, 1),
    "seglog_scrub_last_pass_timestamp_seconds": lambda s, n: s.began <= s.of(n) <= s.now,
    "seglog_scrub_findings_total": is_count(1, 10),
    "seglog_damaged_ranges": is_count(1, 1),
    "seglog_authentications_total": lambda s, n: 2 <= s.of(n, "native", "SCRAM-SHA-512") <= 20,
    "seglog_authentication_failures_total": lambda s, n: s.of(n, "native", "SCRAM-SHA-512") == WRONG_PASSWORDS,
    "seglog_authorization_refusals_total": is_count(1, 1),
    "seglog_tls_handshakes_failed_total": is_count(1, 1),
    "seglog_certificate_expiry_timestamp_seconds": lambda s, n: s.of(n) == s.certificate_ends,
}
"""The families that are 0, or absent, in a broker that is well and open to everyone."""


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """What a daemon with TLS and accounts told after a kill, damage, failed logins and a failed handshake."""
    began = time.time()
    settings = [
        "seglog.scrub.interval.ms=100",
        "log.initial.task.delay.ms=0",
        "log.retention.check.interval.ms=200",
        "log.flush.offset.checkpoint.interval.ms=600000",
    ]
    options = [part for setting in settings for part in ("--set", setting)]
    with secured(tmp_path_factory.mktemp("troubled"), *options, under=()) as at:
        with at.connect() as client:
            client.create_topic(HURT, 1, {"segment.bytes": 4096})
            client.create_topic(BRIEF, 1, {"segment.bytes": 1024, "retention.ms": 1000})
            with client.producer(HURT, ack="disk", batch_bytes=500) as producer:
                for number in range(RECORDS):
                    producer.send(f"{number}" * 10, partition=0)
        at.running.kill()
        at.running.start()
        with at.connect() as client:
            _make_trouble(at)
            with client.producer(BRIEF, linger_ms=0) as producer:
                for number in range(50):
                    producer.send(f"{number}" * 10, timestamp=round(time.time() * 1000) - 500)
            wait_until(lambda: _has_come(client), "an expired segment and a damaged one that was found")
            assert at.running.process is not None
            seen = Seen(client.samples(), began, at.running.process.pid)
            certificate = x509.load_pem_x509_certificate((at.certificates.folder / "broker.crt").read_bytes())
            seen.certificate_ends = certificate.not_valid_after_utc.timestamp()
            yield seen


def _make_trouble(at: Secured) -> None:
    damage(at.running, HURT)
    at.running.is_hurt = True
    for number in range(WRONG_PASSWORDS):
        with pytest.raises(seglog.SeglogError), at.connect(password=f"wrong {number}") as client:
            client.ping()
    with at.connect("alice") as client, pytest.raises(seglog.SeglogError):
        client.create_topic("not-for-alice")
    trusting_others = ssl.create_default_context()
    with socket.create_connection(("127.0.0.1", at.port)) as raw, pytest.raises(ssl.SSLError):
        trusting_others.wrap_socket(raw, server_hostname="localhost")


def _has_come(client: Client) -> bool:
    families = {family.name: family for family in client.samples()}
    scrub = ("scrub_findings_total", "scrub_passes_total", "scrubbed_segments_total", "damaged_ranges")
    return all(families[f"seglog_{name}"].value() for name in (*scrub, "segments_expired_total"))


@pytest.mark.soak
@each_case("name", IN_TROUBLE)
def test_a_metric_of_trouble_is_what_was_done(troubled: Seen, name: str) -> None:
    assert IN_TROUBLE[name](troubled, name), troubled.families[name]
