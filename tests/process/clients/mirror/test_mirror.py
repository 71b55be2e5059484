"""``seglog mirror`` between two daemons: what arrives, what goes on after kills, and what is refused in a sentence."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import seglog
from seglog.mirror.cluster import Cluster
from seglog.mirror.places import kafka_place
from seglog_protocol.errors import PartitionRecoveringError, UnknownTopicError
from tests.process.faults.secured_daemon import ADMIN, PASSWORDS, secured
from tests.processes import wait_until
from tests.unit.clients.mirror.sides import (
    BASE_TIME,
    Sides,
    commit,
    committed,
    completed,
    contents,
    kafka_of,
    mirror,
    mirror_command,
    numbered,
    produce,
    sides,
    started,
)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    with sides(tmp_path_factory.mktemp("mirror")) as found:
        yield found


def create(both: Sides, topic: str, partitions: int = 1, **config: str) -> None:
    """In the source; the records' timestamps are old, so that they would expire at once by default."""
    settings = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in config.items()}
    with seglog.connect(both.source.address) as client:
        client.create_topic(topic, partitions=partitions, config=settings)


def filled(both: Sides, topic: str, count: int, partitions: int = 1, **config: str) -> None:
    """In the source, with so many records."""
    create(both, topic, partitions, **config)
    produce(kafka_of(both.source), topic, numbered(0, count, partitions))


def same(both: Sides, topic: str, partition: int = 0) -> list[object]:
    found = contents(kafka_of(both.target), topic, partition)
    assert found == contents(kafka_of(both.source), topic, partition)
    return found


def test_records_of_every_kind_are_equal_with_their_offsets_and_the_configuration_goes_along(both: Sides) -> None:
    create(both, "kinds", 2, max_message_bytes="5000000")
    odd: list[dict[str, Any]] = [
        {"value": None, "key": None, "partition": 0, "timestamp": -1},
        {"value": b"", "key": b"", "partition": 0, "timestamp": 1},
        {"value": b"v", "key": b"k", "partition": 0, "headers": [("a", None), ("a", b""), ("ö", b"\xff")]},
        {"value": b"x" * 2_000_000, "key": b"large", "partition": 0, "timestamp": BASE_TIME},
    ]
    produce(kafka_of(both.source), "kinds", odd + numbered(0, 2000, 2), **{"message.max.bytes": 4_000_000})
    done = mirror(both, "kinds", "--once")
    assert done.returncode == 0, done.stderr
    assert "everything is there: 2 partitions, the same offsets" in done.stdout
    assert len(same(both, "kinds", 0)) == 1004
    assert len(same(both, "kinds", 1)) == 1000
    with seglog.connect(both.target.address) as client:
        config = client.describe_topic("kinds").config or {}
        assert (config["retention.ms"].value, config["max.message.bytes"].value) == ("-1", "5000000")


def test_a_log_that_begins_later_keeps_its_offsets_and_progress_is_json_for_programs(both: Sides) -> None:
    filled(both, "later", 3000)
    with seglog.connect(both.source.address) as client:
        client.truncate_topic("later", {0: 2500})
    done = mirror(both, "later", "--once", "--json")
    *states, outcome = map(json.loads, done.stdout.splitlines())
    assert states[0].keys() == {"copied", "per_second", "lag", "seconds_to_go"}
    assert outcome == {"copied": 500, "partitions": 1, "offsets_equal": True, "groups": []}
    assert len(same(both, "later")) == 500


def test_what_comes_later_is_followed_and_the_lag_is_the_lag_of_a_group(both: Sides, tmp_path: Path) -> None:
    create(both, "followed", 2)
    following = started(mirror_command(both, "followed"), tmp_path / "errors")
    for turn in range(3):
        produce(kafka_of(both.source), "followed", numbered(turn * 100, 100, 2))
        wait_until(partial(_has_come, both, "followed", turn * 50 + 50), "its records are there")
    following.send_signal(signal.SIGTERM)
    assert following.wait(30) == 130, (tmp_path / "errors").read_text()
    assert len(same(both, "followed", 1)) == 150
    with seglog.connect(both.source.address) as client:
        (group,) = (each.group for each in client.groups() if each.group.startswith("seglog-mirror-to-"))
    assert committed(kafka_of(both.source), group, "followed") == (150, "")


def arrived(both: Sides, topic: str, partition: int = 0) -> int:
    """The end of a partition in the target, 0 before the topic is there or while it is recovered."""
    with seglog.connect(both.target.address) as client:
        try:
            return client.offsets(topic)[partition].end("read_uncommitted")
        except (UnknownTopicError, PartitionRecoveringError):
            return 0


def test_offsets_of_groups_stand_before_the_same_record_where_offsets_differ(both: Sides) -> None:
    """Compaction has taken most records, so that the target's offsets are smaller."""
    filled(both, "compacted", 100, 1, cleanup_policy="compact")
    address = kafka_of(both.source)
    commit(address, "reader", "compacted", 40, "noted")
    assert mirror(both, "compacted", "--once").returncode == 0
    assert committed(kafka_of(both.target), "reader", "compacted") == (40, "noted")
    commit(address, "reader", "compacted", 100)
    produce(address, "compacted", numbered(100, 10))
    done = mirror(both, "compacted", "--cut-over", "--silent", "0.5")
    assert "group reader has 10 records to read" in done.stdout
    assert "switch now" in done.stdout
    assert committed(kafka_of(both.target), "reader", "compacted") == (100, "")


def test_a_group_that_goes_on_in_the_target_is_left_alone(both: Sides) -> None:
    filled(both, "moved", 100)
    commit(kafka_of(both.source), "mover", "moved", 40)
    assert mirror(both, "moved", "--once").returncode == 0
    commit(kafka_of(both.target), "mover", "moved", 90)
    commit(kafka_of(both.source), "mover", "moved", 50)
    assert mirror(both, "moved", "--once").returncode == 0
    assert committed(kafka_of(both.target), "mover", "moved")[0] == 90
    member = Consumer({"bootstrap.servers": kafka_of(both.target), "group.id": "mover", "log_level": 0})
    member.subscribe(["moved"])
    wait_until(lambda: member.poll(0.1) is not None or bool(member.assignment()), "it is a member")
    commit(kafka_of(both.source), "mover", "moved", 99)
    done = mirror(both, "moved", "--once")
    member.close()
    assert "offsets of group mover are not carried over: it has members there" in done.stderr


def test_a_second_mirror_of_a_topic_is_refused_one_of_another_is_not_and_the_first_goes_on(
    both: Sides, tmp_path: Path
) -> None:
    for topic in ("twice", "beside"):
        filled(both, topic, 10)
    first = started(mirror_command(both, "twice"), tmp_path / "errors")
    wait_until(lambda: arrived(both, "twice") == 10, "it mirrors")
    second = mirror(both, "twice", "--once")
    assert second.returncode == 1
    assert "another mirror, seglog-mirror " in second.stderr
    assert "writes twice" in second.stderr
    assert mirror(both, "beside", "--once").returncode == 0
    produce(kafka_of(both.source), "twice", numbered(10, 10))
    wait_until(partial(_has_come, both, "twice", 20), "the first goes on")
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 130
    assert len(same(both, "twice")) == 20
    assert (tmp_path / "errors").read_text().count("waiting") == 0


def _has_come(both: Sides, topic: str, end: int) -> bool:
    return arrived(both, topic) == end


def test_a_source_that_was_made_again_is_not_mixed_with_the_old_one(both: Sides) -> None:
    filled(both, "again", 10)
    assert mirror(both, "again", "--once").returncode == 0
    with seglog.connect(both.source.address) as client:
        client.delete_topic("again")
    create(both, "again")
    produce(kafka_of(both.source), "again", numbered(500, 20))
    done = mirror(both, "again", "--once")
    assert done.returncode == 1
    assert "again was deleted in 127.0.0.1" in done.stderr
    with seglog.connect(both.target.address) as client:
        client.delete_topic("again")
    assert mirror(both, "again", "--once").returncode == 0
    assert len(same(both, "again")) == 20


def test_a_topic_that_is_deleted_while_it_is_mirrored_ends_the_mirror_with_a_sentence(
    both: Sides, tmp_path: Path
) -> None:
    for topic, side, advice in [
        ("gone-there", both.target, "start the mirror again: it copies the topic from its beginning"),
        ("gone-here", both.source, "leave it out, or delete it in the target as well"),
    ]:
        create(both, topic)
        errors = tmp_path / topic
        running = started(mirror_command(both, topic), errors)
        produce(kafka_of(both.source), topic, numbered(0, 10))
        wait_until(partial(_has_come, both, topic, 10), "it mirrors")
        if side is both.target:  # something is on its way when it is gone
            produce(kafka_of(both.source), topic, numbered(10, 10_000))
        with seglog.connect(side.address) as client:
            client.delete_topic(topic)
        assert running.wait(60) == 1
        assert f"topic {topic} was deleted in " in errors.read_text()
        assert advice in errors.read_text()


def test_a_target_with_other_records_or_fewer_partitions_is_refused(both: Sides) -> None:
    filled(both, "other", 10, 2)
    with seglog.connect(both.target.address) as client:
        client.create_topic("other", partitions=1, config={"retention.ms": "-1"})
    done = mirror(both, "other", "--once")
    assert done.returncode == 1
    assert "has 2 partitions in 127.0.0.1" in done.stderr
    assert "add the missing ones there" in done.stderr
    with seglog.connect(both.target.address) as client:
        client.delete_topic("other")
        client.create_topic("other", partitions=2, config={"retention.ms": "-1"})
    produce(kafka_of(both.target), "other", numbered(77, 10, 2))
    done = mirror(both, "other", "--once")
    assert done.returncode == 1
    assert "has records that are not of this source" in done.stderr


def test_what_was_deleted_before_it_was_mirrored_is_named(both: Sides) -> None:
    filled(both, "deleted", 10)
    assert mirror(both, "deleted", "--once").returncode == 0
    produce(kafka_of(both.source), "deleted", numbered(10, 10))
    with seglog.connect(both.source.address) as client:
        client.truncate_topic("deleted", {0: 15})
    done = mirror(both, "deleted", "--once")
    assert "offsets 10 to 14 of deleted-0 were deleted" in done.stderr, done
    assert "other offsets in some partitions" in done.stdout
    found = contents(kafka_of(both.target), "deleted")
    assert [record[1] for record in found] == [b"k%d" % number for number in (*range(10), *range(15, 20))]


def test_a_topic_that_was_mirrored_goes_on_without_what_the_group_knew(both: Sides) -> None:
    """As when its committed offsets have expired."""
    filled(both, "forgotten", 10)
    produce(kafka_of(both.target), "forgotten", numbered(0, 7))
    done = mirror(both, "forgotten", "--once")
    assert "it goes on" in done.stderr, done.stderr
    assert len(same(both, "forgotten")) == 10


def test_what_cannot_begin_says_so(both: Sides, tmp_path: Path) -> None:
    here, there = f"kafka://{kafka_of(both.source)}", f"kafka://{kafka_of(both.target)}"
    program = mirror_command(both)[:3]
    server = ("--server", both.source.address)
    wrong = tmp_path / "account"
    wrong.write_text("sasl.mechanism=PLAIN\nsasl.username=u\nsasl.password=geheim\n")
    for arguments, code, sentence in [
        ((*server, "t"), 2, "say which Kafka"),
        ((*server, "--to", there), 2, "name the topics"),
        ((*server, "--to", here, "t"), 1, "are the same cluster"),
        ((*server, "--to", there, "absent"), 1, "has no topic absent"),
        (("--from", "kafka://127.0.0.1:9", "--to", there, "--connect-timeout", "1", "t"), 3, "does not answer"),
        (
            ("--from", here, "--to", there, "--kafka-config", str(wrong), "--connect-timeout", "2", "t"),
            4,
            "refuses the account",
        ),
    ]:
        done = completed([*program, "mirror", *arguments])
        assert (done.returncode, sentence in done.stderr) == (code, True), (arguments, done)
        assert "Traceback" not in done.stderr
        assert "geheim" not in done.stderr


@pytest.mark.soak
def test_a_kafka_with_tls_and_accounts_is_mirrored_to_and_what_it_refuses_is_said(both: Sides, tmp_path: Path) -> None:
    filled(both, "secured", 1000)
    with secured(tmp_path / "there", under=()) as at:
        login = {"sasl.mechanism": "SCRAM-SHA-512", "ssl.ca.location": str(at.certificates.authority_file)}
        login |= {"sasl.username": ADMIN, "sasl.password": PASSWORDS[ADMIN]}
        config = tmp_path / "kafka.properties"

        def mirrored(url: str, **changes: str) -> "subprocess.CompletedProcess[str]":
            asked = login | {name.replace("_", "."): value for name, value in changes.items()}
            config.write_text("".join(f"{name}={value}\n" for name, value in asked.items()))
            command = [*mirror_command(both)[:3], "mirror", "--server", both.source.address, "--to", url]
            return completed([*command, "--kafka-config", str(config), "--connect-timeout", "5", "--once", "secured"])

        there = f"127.0.0.1:{at.kafka_ports['SASL_SSL']}"
        done = mirrored(f"kafkas://{there}")
        assert (done.returncode, "the same offsets" in done.stdout) == (0, True), done
        account: dict[str, Any] = login | {"security.protocol": "SASL_SSL"}
        found = contents(there, "secured", **account)
        assert found == contents(kafka_of(both.source), "secured")
        other = str(at.certificates.authority_file.parent / "broker.crt")
        for changes, url, code, sentence in [
            ({"sasl_password": "geheim"}, f"kafkas://{there}", 4, "refuses the account"),
            ({"sasl_mechanism": "GSSAPI"}, f"kafkas://{there}", 1, "see --kafka-config"),
            ({"ssl_ca_location": other}, f"kafkas://{there}", 3, "certificate"),
            ({}, f"kafka://{there}", 3, "does not answer"),
        ]:
            done = mirrored(url, **changes)
            assert (done.returncode, sentence in done.stderr) == (code, True), (changes, done)
            assert "geheim" not in done.stderr
            assert "Traceback" not in done.stderr


class _Deaf:
    """An admin client of librdkafka that has lost a request: no outcome ever comes."""

    def describe_topics(self, _topics: Any) -> dict[str, "Future[Any]"]:
        return {"lost": Future()}

    def poll(self, _seconds: float) -> int:
        return 0


def test_a_request_without_an_outcome_is_asked_again(both: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    create(both, "lost", 3)
    side = Cluster(kafka_place(f"kafka://{kafka_of(both.source)}", {}), client_id="tests")
    monkeypatch.setattr("seglog.mirror.cluster._LOST_SECONDS", 1.0)
    monkeypatch.setattr(side, "_admin", _Deaf())
    assert side.topics(["lost"])["lost"].partitions == 3


def _has_gone_on(both: Sides, before: int, end: int) -> bool:
    return before == end or arrived(both, "kills") > before


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_kills_of_mirror_source_and_target_lose_and_double_nothing(tmp_path: Path) -> None:
    count, partitions = 300_000, 4
    with sides(tmp_path) as both:
        filled(both, "kills", count, partitions)
        running: subprocess.Popen[bytes] | None = None
        for turn in range(9):
            if running is None:
                running = started(mirror_command(both, "kills"), tmp_path / "errors")
            before = arrived(both, "kills")
            wait_until(partial(_has_gone_on, both, before, count // partitions), "it goes on")
            time.sleep(0.05 * turn)
            if turn % 3 == 0:
                running.kill()
                running.wait()
                running = None
            else:
                side = both.source if turn % 3 == 1 else both.target
                side.kill()
                side.start()
        if running is not None:
            running.kill()
            running.wait()
        done = mirror(both, "kills", "--once")
        assert done.returncode == 0, (done.stderr, (tmp_path / "errors").read_text())
        assert [len(same(both, "kills", partition)) for partition in range(partitions)] == [count // partitions] * 4
