"""The metrics of a daemon that was killed, loaded, damaged and attacked, compared with what was done to it.

Those of partitions, groups and transactions: ``tests/unit/broker/api/monitoring``.
"""

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
from seglog_broker.api.monitoring.families import FAMILIES, Kind, Scope
from seglog_protocol.messages import MetricBuckets, MetricFamily
from tests.process.deploy.workload import damage
from tests.process.faults.secured_daemon import Secured, secured
from tests.processes import wait_until
from tests.support import each_case

RECORDS: Final = 300
"""Sent to ``plain``, one request each, at ack disk."""
KAFKA_RECORDS: Final = 20
COMPACTED: Final = 200
OLD: Final = 7
HOUR_MS: Final = 3_600_000
WRONG_PASSWORDS: Final = 3
HURT: Final = "hurt"
BRIEF: Final = "brief"
"""A topic whose records expire at once."""
TOPICS: Final = {"plain": 3, "compacted": 1, "old": 1, "kafka": 1, HURT: 1, BRIEF: 1}
"""Partitions by topic."""


class Seen:
    """What a daemon told, and when the load began and ended."""

    def __init__(self, families: list[MetricFamily], began: float, certificate_ends: float) -> None:
        self.families = {family.name: family for family in families}
        self.began = began
        self.now = time.time()
        self.certificate_ends = certificate_ends
        """In seconds since 1970."""

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


NOTHING_OF: Final = """
    log_lines_lost_total duplicates_total request_memory_waiting disk_full clock_untrusted
    awaited_segments awaited_bytes
"""
ANY_NUMBER_OF: Final = """
    cold_reads_total request_memory_waits_total disk_full_in_seconds retention_next_loss_seconds
"""
SOME_OF: Final = """
    fetches_waited_total open_files problems partitions_recovered_total segments_expired_total expired_bytes_total
    scrubbed_segments_total scrub_passes_total scrub_findings_total
"""


def all_of(names: str, expected: Callable[[Seen, str], bool]) -> dict[str, Callable[[Seen, str], bool]]:
    return {f"seglog_{name}": expected for name in names.split()}


EXPECTED: Final[Mapping[str, Callable[[Seen, str], bool]]] = {
    **all_of(NOTHING_OF, is_count(0, 0)),
    **all_of(ANY_NUMBER_OF, is_count(0)),
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
    "seglog_topics": is_count(len(TOPICS) + 1, len(TOPICS) + 1),
    "seglog_partitions": lambda s, n: (
        s.of(n, "serving") >= sum(TOPICS.values())
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
    "seglog_scrubbed_bytes_total": lambda s, n: s.of(n) >= 61 * s.of("seglog_scrubbed_segments_total"),
    "seglog_scrub_last_pass_timestamp_seconds": lambda s, n: s.began <= s.of(n) <= s.now,
    "seglog_damaged_ranges": is_count(1, 1),
    "seglog_backup_loss_seconds": is_count(0, 600),
    "seglog_backup_loss_limit_seconds": is_count(1, 1),
    "seglog_backup_loss_records": is_count(0, 10**5),
    "seglog_backup_loss_bytes": is_count(0, 10**8),
    "seglog_backup_held_up": is_count(0, 1),
    "seglog_backup_published_timestamp_seconds": lambda s, n: s.began <= s.of(n) <= s.now,
    "seglog_backup_written_bytes_total": is_count(RECORDS * 61, 10**9),
    "seglog_recovery_bytes_total": is_count(RECORDS * 10, 10**7),
    "seglog_authentications_total": lambda s, n: 2 <= s.of(n, "native", "SCRAM-SHA-512") <= 20,
    "seglog_authentication_failures_total": lambda s, n: s.of(n, "native", "SCRAM-SHA-512") == WRONG_PASSWORDS,
    "seglog_authorization_refusals_total": is_count(1, 1),
    "seglog_tls_handshakes_failed_total": is_count(1, 1),
    "seglog_certificate_expiry_timestamp_seconds": lambda s, n: s.of(n) == s.certificate_ends,
    "seglog_topic_expired_on_arrival_total": lambda s, n: s.of(n, "old") == OLD and s.of(n, "plain") == 0,
    "seglog_group_rebalances_total": lambda s, n: s.of(n, "live") >= 1,
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Secured, Seen]]:
    """A daemon after a kill, and what it told after everything else, while readers still waited."""
    began = time.time()
    settings = {
        "log.initial.task.delay.ms": 0,
        "log.cleaner.backoff.ms": 100,
        "log.retention.check.interval.ms": 200,
        "log.flush.offset.checkpoint.interval.ms": 600_000,
        "seglog.scrub.interval.ms": 100,
        "seglog.http.listen": "127.0.0.1:0",
        "seglog.backup.to": tmp_path_factory.mktemp("backup"),
        "seglog.backup.lag.ms": 1000,
    }
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    with secured(tmp_path_factory.mktemp("loaded"), *options, under=()) as at:
        with at.connect() as client:
            client.create_topic(HURT, 1, {"segment.bytes": 4096})
            client.create_topic(BRIEF, 1, {"segment.bytes": 1024, "retention.ms": 1000})
            with client.producer(HURT, ack="disk", batch_bytes=500) as producer:
                for number in range(RECORDS):
                    producer.send(f"{number}" * 10, partition=0)
        at.running.kill()
        at.running.start()
        kafka = f"127.0.0.1:{at.kafka_ports['PLAINTEXT']}"
        with at.connect() as client, closing(KafkaProducer(bootstrap_servers=kafka, acks="all")) as sender:
            _make_trouble(at)
            _produce(client, sender)
            with client.consumer("plain", group="live", start="earliest") as consumer:
                read = iter(consumer)
                for _ in range(RECORDS):
                    next(read)
                with at.connect() as other, other.consumer("plain", start="latest") as waiting:
                    wait_for_all(client, waiting)
                    yield at, _seen(at, client, began)


def _seen(at: Secured, client: Client, began: float) -> Seen:
    certificate = x509.load_pem_x509_certificate((at.certificates.folder / "broker.crt").read_bytes())
    return Seen(client.samples(), began, certificate.not_valid_after_utc.timestamp())


def _produce(client: Client, sender: Any) -> None:
    client.create_topic("plain", TOPICS["plain"])
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
    with client.producer(BRIEF, linger_ms=0) as producer:
        for number in range(50):
            producer.send(f"{number}" * 10, timestamp=round(time.time() * 1000) - 500)
    for number in range(KAFKA_RECORDS):
        sender.send("kafka", f"{number}".encode(), partition=0).get(60)


def wait_for_all(client: Client, waiting: Any) -> None:
    """Until a fetch waits, compaction has run, a segment has expired, and the damaged one was found."""

    def wait() -> None:
        with suppress(seglog.SeglogError):
            next(iter(waiting), None)

    threading.Thread(target=wait, daemon=True).start()
    counted = ("compaction_written_bytes_total", "fetches_waiting", "scrub_findings_total", "scrub_passes_total",
               "scrubbed_segments_total", "damaged_ranges", "segments_expired_total",
               "backup_written_bytes_total", "backup_published_timestamp_seconds")  # fmt: skip

    def is_there() -> bool:
        families = {family.name: family for family in client.samples()}
        return all(families[f"seglog_{name}"].value() for name in counted)

    wait_until(is_there, "what happens in the background")


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


def test_every_family_has_an_expectation_here_or_in_a_unit_test() -> None:
    elsewhere = {"seglog_partitions_held_back", "seglog_topics_left_out", "seglog_groups_left_out"}
    elsewhere |= {"seglog_connections_muted", "seglog_quota_throttles_total", "seglog_quota_throttle_seconds_total"}
    elsewhere |= {each.name for each in FAMILIES if each.scope is not Scope.BROKER or "transaction" in each.name}
    elsewhere |= {each.name for each in FAMILIES if each.name.startswith(("seglog_share_", "seglog_dead_letters_"))}
    assert {family.name for family in FAMILIES} - elsewhere <= EXPECTED.keys()


@pytest.mark.soak
@each_case("name", EXPECTED)
def test_a_metric_is_what_the_load_makes_plausible(loaded: tuple[Secured, Seen], name: str) -> None:
    _, seen = loaded
    assert EXPECTED[name](seen, name), seen.families[name]


@pytest.mark.soak
def test_counters_never_fall_and_labels_stay_few(loaded: tuple[Secured, Seen]) -> None:
    at, seen = loaded
    with at.connect() as client:
        later = _seen(at, client, seen.began)
    for family in FAMILIES:
        if family.kind is Kind.COUNTER:
            after = later.all(family.name)
            assert all(after[labels] >= value for labels, value in seen.all(family.name).items()), family.name
        assert len(later.families[family.name].samples) < 500, family.name
