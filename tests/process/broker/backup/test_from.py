"""`seglogd --from`: an empty directory begins with a backup, and Kafka's clients read what is still to come."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from confluent_kafka import Consumer, TopicPartition

import seglog
from tests.processes import Daemon, daemon, seglogd

RECORDS = 3_000
VALUE = b"." * 1_000
SEGMENT_BYTES = 1024 * 1024


def backed_up(tmp_path: Path) -> Path:
    """A place with a backup of a topic with three segments, of which the last one is active."""
    place = tmp_path / "place"
    with daemon(tmp_path / "lost") as lost, seglog.connect(lost.address) as client:
        client.create_topic("t", config={"segment.bytes": SEGMENT_BYTES, "retention.ms": -1})
        with client.producer("t") as producer:
            for number in range(RECORDS):
                producer.send(b"%06d" % number + VALUE)
        assert seglogd("backup", lost.directory, "--to", place).returncode == 0
        lost.is_hurt = True
    return place


@contextmanager
def begun(tmp_path: Path, place: Path, *more: str) -> Iterator[Daemon]:
    listeners = ("--set", "listeners=PLAINTEXT://127.0.0.1:0", "--http", "127.0.0.1:0")
    with daemon(tmp_path / "begun", *listeners, "--from", str(place), *more) as running:
        yield running


def told_to_try_again(running: Daemon) -> float:
    """How often fetches were."""
    with urlopen(f"http://127.0.0.1:{running.http_port}/metrics") as page:
        lines = page.read().decode().splitlines()
    mine = [line for line in lines if line.startswith("seglog_request_errors_total") and "Fetch" in line]
    assert not [line for line in mine if "OUT_OF_RANGE" in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in mine if "NOT_LEADER" in line or "AWAITED" in line)


def test_a_kafka_client_reads_from_the_first_offset_while_older_segments_are_held_back(tmp_path: Path) -> None:
    place = backed_up(tmp_path)
    closed = [path for path in (place / "files").iterdir() if path.stat().st_size > SEGMENT_BYTES - 20_000]
    assert len(closed) == 2
    for path in closed:
        path.rename(tmp_path / path.name)
    with begun(tmp_path, place) as running:
        (restored,) = [event for event in running.logged if event["event"] == "restored"]
        assert restored["awaited"] == 2
        consumer = Consumer(
            {"bootstrap.servers": f"127.0.0.1:{running.kafka_port}", "group.id": "g", "auto.offset.reset": "error"}
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        assert consumer.get_watermark_offsets(TopicPartition("t", 0)) == (0, RECORDS)
        while told_to_try_again(running) < 3:
            assert consumer.poll(0.1) is None
        for path in closed:
            (tmp_path / path.name).rename(path)
        for number in range(RECORDS):
            message = None
            while message is None:
                message = consumer.poll(1)
            assert message.error() is None, message.error()
            assert (message.offset(), message.value()) == (number, b"%06d" % number + VALUE)
        consumer.close()
        assert running.stop() == 0
        running.start()  # has data now: the option does nothing
        assert [event["event"] for event in running.logged].count("backup_not_used") == 1
        with seglog.connect(running.address) as client, client.consumer("t", start="earliest") as reader:
            assert sum(1 for _ in reader) == RECORDS


def test_what_cannot_be_begun_is_said_in_a_sentence(tmp_path: Path) -> None:
    done = seglogd("--data", tmp_path / "new", "--listen", "127.0.0.1:0", "--from", tmp_path / "nowhere")
    assert done.returncode == 1
    assert "was not begun from" in done.stderr
    assert "is no backup of seglog" in done.stderr
    done = seglogd("--data", tmp_path / "new", "--until", "2026-01-01")
    assert done.returncode == 2
    assert "--until and --take-over say how to begin --from PLACE" in done.stderr
