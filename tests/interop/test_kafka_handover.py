"""One directory goes Kafka -> seglog -> Kafka -> seglog, by stopping one and starting the other on it.

Kafka's metadata log stays in the directory, so nothing is exported. After each change of hands records, look-ups,
committed offsets, topic ids and configurations are asked of both, through the same protocol, and are equal.
Transactions are committed and aborted, every codec is there, and both write and commit while they have it. Kafka's
dump-log finds nothing to say of what seglog wrote; the second time Kafka makes and deletes topics, and is killed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from seglog_broker.config.topic_overrides import KEPT_FOR_EVER
from seglog_protocol.compression import Codec
from tests.interop.handover import batch_of, commit, produce, seen, transaction
from tests.interop.kafka_wire import Wire
from tests.interop.make_kafka_metadata import TOPICS, alter, create, delete, settings
from tests.interop.peer import Kafka, kafka_script
from tests.interop.test_dump_log import dump, files_of
from tests.processes import kafka_daemon, seglog_json
from tests.soundness import assert_left_sound

pytestmark = [pytest.mark.timeout(900)]

KEPT: Final = {
    name: config | {"retention.ms": "-1"} for name, config in TOPICS.items() if name not in ("again", "gone")
}
CODECS: Final = {f"codec-{codec.name.lower()}": {"retention.ms": "-1"} for codec in Codec}


def write(wire: Wire, who: str, turn: int) -> None:
    """Append to each topic, and commit."""
    for topic in (*KEPT, *CODECS):
        codec = Codec[topic.removeprefix("codec-").upper()] if topic in CODECS else Codec.NONE
        produce(wire, topic, batch_of(f"{who} {turn}", 6, codec))
    commit(wire, dict.fromkeys((*KEPT, "ledger"), turn + 1))
    for number, committed in enumerate((True, False, True)):
        transaction(wire, f"{who}-{number}", f"transaction {turn} of {who}", committed=committed)


@contextmanager
def kafka_on(kafka: Kafka, *, killed: bool = False) -> Iterator[Wire]:
    # No retention nor compaction: what is compared would depend on when it is asked.
    settled = ("log.cleaner.enable=false", "log.retention.check.interval.ms=86400000")
    few = ("offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1")
    with kafka.running(*settled, *few, killed=killed), Wire(kafka.port) as wire:
        yield wire
    assert_left_sound(kafka.directory)


def test_a_directory_goes_to_seglog_and_back_twice_and_stays_equal(tmp_path: Path) -> None:
    kafka = Kafka(kafka_script(), tmp_path / "kafka")
    kafka.data.mkdir()
    topics = KEPT | CODECS | {name: {"retention.ms": "-1"} for name in ("ledger", "gone")}
    with kafka_on(kafka) as wire:
        create(wire, topics)
        write(wire, "kafka", 0)
        theirs = seen(wire)
        configs = {name: settings(wire, name) for name in topics}
    assert len(theirs["ledger-0"]["committed records"][-1]) == 1, "there is an aborted transaction"
    for turn in (1, 2):
        with kafka_daemon(kafka.directory) as running:
            with Wire(running.kafka_port) as wire:
                assert seen(wire) == theirs
                for name, config in configs.items():
                    ours = settings(wire, name)
                    expected = {key.removeprefix("internal."): value for key, value in config.items()}
                    assert ours == KEPT_FOR_EVER | expected, name
                assert seglog_json(running.address, "ping")["problems"] == []
                write(wire, "seglog", turn)
                mine = seen(wire)
            assert running.stop() == 0
        if turn == 2:
            return
        ledgers = [path for path in files_of(kafka.directory) if path.parent.name.startswith("ledger-")]
        assert dump(kafka_script(), ledgers).complaints == []
        with kafka_on(kafka, killed=True) as wire:
            assert seen(wire) == mine
            assert {name: settings(wire, name) for name in topics} == configs
            write(wire, "kafka", turn)
            create(wire, {"late": {"retention.ms": "-1"}})
            produce(wire, "late", batch_of("late", 6))
            delete(wire, "gone")
            topics = {name: config for name, config in topics.items() if name != "gone"} | {"late": {}}
            alter(wire, 2, "changed", ("retention.ms", 0, "777777777777"), ("segment.ms", 1, None))
            alter(wire, 2, "plain", ("max.message.bytes", 0, "77777"))
            theirs = seen(wire)
            configs = {name: settings(wire, name) for name in topics}
