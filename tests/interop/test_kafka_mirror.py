"""``seglog mirror`` with a real Kafka: out and back, compared record by record, and over TLS with accounts.

That kills of any side lose and double nothing is shown between daemons, by ``tests/process/clients/mirror``.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

import seglog
from tests.certificates import HOSTS
from tests.interop.kafka_security_cases import make_users
from tests.interop.kafka_settings import kafka_settings
from tests.interop.peer import Kafka, free_ports, kafka_script
from tests.interop.sasl_conversation import USERS
from tests.process.faults.secured_daemon import ADMIN, PASSWORDS, secured
from tests.processes import kafka_daemon
from tests.unit.clients.mirror.sides import commit, committed, completed, contents, kafka_of, numbered, produce

pytestmark = [pytest.mark.timeout(600)]

PARTITIONS: Final = 4
COUNT: Final = 20_000
MIRROR: Final = (sys.executable, "-m", "seglog", "mirror", "--server")


@contextmanager
def a_kafka(folder: Path, *settings: str) -> Iterator[Kafka]:
    kafka = Kafka(kafka_script(), folder / "kafka")
    kafka.data.mkdir()
    with kafka.running(*settings, "offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1"):
        yield kafka


def test_a_topic_goes_to_kafka_and_back_record_by_record_and_its_groups_with_it(tmp_path: Path) -> None:
    with kafka_daemon(tmp_path / "a") as ours, kafka_daemon(tmp_path / "b") as other, a_kafka(tmp_path) as kafka:
        with seglog.connect(ours.address) as client:
            client.create_topic("t", partitions=PARTITIONS, config={"retention.ms": "-1"})
        produce(kafka_of(ours), "t", numbered(0, COUNT, PARTITIONS))
        commit(kafka_of(ours), "readers", "t", 77, "noted")
        there = f"kafka://{kafka.address}"
        for daemon, direction in ((ours, "--to"), (other, "--from")):
            done = completed([*MIRROR, daemon.address, direction, there, "t", "--cut-over", "--silent", "1"])
            assert "the same offsets" in done.stdout, done
        for address in (kafka.address, kafka_of(other)):
            for partition in range(PARTITIONS):
                found = contents(address, "t", partition)
                assert found == contents(kafka_of(ours), "t", partition)
                assert len(found) == COUNT // PARTITIONS
            assert committed(address, "readers", "t") == (77, "noted")


def test_of_transactions_what_was_committed_is_mirrored_and_groups_stand_before_the_same_record(
    tmp_path: Path,
) -> None:
    with a_kafka(tmp_path) as kafka, kafka_daemon(tmp_path / "a") as ours:
        kafka.topics("--create", "--topic", "t", "--partitions", "1")
        producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": "t", "log_level": 0})
        producer.init_transactions(60)
        for turn in range(6):
            producer.begin_transaction()
            for record in numbered(turn * 10, 10):
                producer.produce("t", **record)
            if turn % 2:
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
        theirs = contents(kafka.address, "t", isolation="read_committed")
        assert len(theirs) == 30
        commit(kafka.address, "readers", "t", theirs[15][0])
        done = completed([*MIRROR, ours.address, "--from", f"kafka://{kafka.address}", "t", "--once"])
        assert "other offsets in some partitions" in done.stdout, done
        found = contents(kafka_of(ours), "t")
        assert [record[1:] for record in found] == [record[1:] for record in theirs]
        assert [record[0] for record in found] == list(range(30))
        assert committed(kafka_of(ours), "readers", "t")[0] == 15


def test_accounts_and_tls_on_both_sides_there_and_back_and_what_is_refused(tmp_path: Path) -> None:
    config, password = tmp_path / "kafka.properties", tmp_path / "admin.password"
    password.write_text(f"{PASSWORDS[ADMIN]}\n")
    with secured(tmp_path / "ours", under=()) as at:
        authority = at.certificates.authority_file
        kafka = Kafka(kafka_script(), tmp_path / "kafka")
        kafka.data.mkdir()
        ports = {"PLAINTEXT": kafka.port, "SASL_SSL": (port := free_ports())}
        own = at.certificates.issue("kafka", *HOSTS).together
        login = {"sasl.mechanism": "SCRAM-SHA-512", "ssl.ca.location": str(authority)}
        account: dict[str, Any] = login | {
            "security.protocol": "SASL_SSL", "sasl.username": ADMIN, "sasl.password": PASSWORDS[ADMIN],
        }  # fmt: skip
        server = (at.running.address, "--user", ADMIN, "--ca", str(authority), "--password-file", str(password))

        def mirror(*arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
            asked = login | {"sasl.username": "alice", "sasl.password": USERS["alice"]}
            asked |= {name.replace("_", "."): value for name, value in changes.items()}
            config.write_text("".join(f"{name}={value}\n" for name, value in asked.items()))
            given = ("--kafka-config", str(config), "--connect-timeout", "5", "--once")
            return completed([*MIRROR, *server, *arguments, *given])

        ours = f"127.0.0.1:{at.kafka_ports['SASL_SSL']}"
        names = {name: name for name in ports}
        with kafka.running(*kafka_settings(ports, kafka.port + 1, names, server=own, authority=authority)):
            make_users(kafka.port)
            with at.connect() as client:
                client.create_topic("out", config={"retention.ms": "-1"})
            kafka.topics("--create", "--topic", "back", "--partitions", "1", "--config", "retention.ms=-1")
            produce(ours, "out", numbered(0, 1000), **account)
            produce(kafka.address, "back", numbered(0, 1000))
            there = f"kafkas://127.0.0.1:{port}"
            for arguments in (("--to", there, "out"), ("--from", there, "back")):
                done = mirror(*arguments)
                assert (done.returncode, "the same offsets" in done.stdout) == (0, True), done
            assert contents(ours, "back", **account) == contents(kafka.address, "back")
            assert contents(kafka.address, "out") == contents(ours, "out", **account)
            other = str(at.certificates.authority_file.parent / "broker.crt")
            for changes, url, code, sentence in [
                ({"sasl_password": "geheim"}, there, 4, "refuses the account"),
                ({"sasl_mechanism": "GSSAPI"}, there, 1, "see --kafka-config"),
                ({"ssl_ca_location": other}, there, 3, "certificate"),
                ({"security_protocol": "SASL_PLAINTEXT"}, there, 3, "does not answer"),
                ({}, f"kafka://127.0.0.1:{port}", 3, "does not answer"),
                ({}, f"kafkas://{kafka.address}", 3, "does not answer"),
            ]:
                done = mirror("--to", url, "out", **changes)
                assert (done.returncode, sentence in done.stderr) == (code, True), (changes, done)
                assert "geheim" not in done.stderr
                assert "Traceback" not in done.stderr
