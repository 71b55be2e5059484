"""A producer of librdkafka has a transaction open while its broker is lost, and restored to an earlier moment."""

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

import seglog
from tests.processes import PATIENCE_SECONDS, clean_environment, kafka_daemon


def test_half_a_transaction_is_not_committed_and_the_producer_goes_on(tmp_path: Path) -> None:
    data, place, restored = (str(tmp_path / name) for name in ("data", "place", "restored"))

    def seglogd(*arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "seglog_broker", *arguments], check=True, env=clean_environment())

    with kafka_daemon(Path(data)) as broker:
        given = {"bootstrap.servers": f"127.0.0.1:{broker.kafka_port}", "transactional.id": "pay", "log_level": 0}
        patient = {
            "metadata.recovery.strategy": "none",
            "reconnect.backoff.max.ms": 500,
        }  # else it forgets its only node
        producer = Producer({**given, **patient})
        producer.init_transactions(PATIENCE_SECONDS)

        def send(value: bytes) -> None:
            producer.produce("orders", value)
            assert producer.flush(PATIENCE_SECONDS) == 0

        producer.begin_transaction()
        send(b"first half")
        seglogd("backup", data, "--to", place)
        send(b"second half")
        broker.kill()
        seglogd("restore", place, "--to", restored)
        broker.directory = Path(restored)
        broker.start()
        with pytest.raises(KafkaException) as refused:
            producer.commit_transaction(PATIENCE_SECONDS)
        assert refused.value.args[0].txn_requires_abort()
        producer.abort_transaction(PATIENCE_SECONDS)
        producer.begin_transaction()
        send(b"whole")
        producer.commit_transaction(PATIENCE_SECONDS)
        with seglog.connect(broker.address) as client:
            consumer = client.consumer("orders", start="earliest", isolation="read_committed")
            assert [record.value for record in consumer] == [b"whole"]
