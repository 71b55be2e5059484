"""A transaction that hangs, because the broker has lost what it knew of transactional ids, and who ends it."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import seglog
from tests.interop.kafka_cases import create_topics
from tests.interop.kafka_tools import Tools
from tests.interop.kafka_transaction_cases import Story, Who
from tests.interop.kafka_wire import Wire
from tests.processes import Daemon, kafka_daemon, seglog_command, wait_until

pytestmark = [pytest.mark.timeout(600)]

TOPIC: Final = "orders"
"""The name of the transactional id as well."""
COMMITTED: Final = 3
"""Records of the transactions before; each has a marker behind it."""
BEGIN: Final = 2 * COMMITTED
"""The offset where the one that hangs begins."""
BEFORE: Final = [2 * number for number in range(COMMITTED)]
"""The offsets of the records of those before."""


def asked(running: Daemon, *arguments: str) -> str:
    """What `seglog` prints."""
    command = seglog_command(running.address, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def abort(running: Daemon) -> str:
    """What the command prints that `ping` names."""
    return asked(running, "transaction", "abort-hanging", TOPIC, "0", str(BEGIN), "--yes")


@contextmanager
def hanging(folder: Path) -> Iterator[tuple[Daemon, Who]]:
    """A daemon with some committed transactions and one that hangs, and its producer.

    Its operator lets it begin without the partition that was lost, as ``ping`` proposes.
    """
    with kafka_daemon(folder / "data") as running:
        with Wire(running.kafka_port) as wire:
            kept = [{"name": "retention.ms", "value": "-1"}]  # its records are years old
            create_topics(wire, [{"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "configs": kept}])
            story = Story(wire, TOPIC)
            who = story.init()
            for _ in range(COMMITTED):
                story.produce(who, version=12)
                who = story.end(who, version=5)
                story.settle()
            story.produce(who, version=12)
            assert story.lines[-1] == f"produce v12: NONE {BEGIN}"
        running.kill()
        for lost in running.directory.glob("__transaction_state-*"):
            shutil.rmtree(lost)
        running.start()
        wait_until(lambda: "which transactions hang is not known, because" in abort(running), "it is offline")
        assert "__transaction_state-0 is gone: put it back, or have it begin without records" in abort(running)
        assert running.stop() == 0
        running.arguments = (*running.arguments, "--set", "seglog.missing.partitions=empty")
        running.start()
        yield running, who


def committed(client: seglog.Client) -> list[int]:
    """The offsets that are read at "read_committed"."""
    with client.consumer(TOPIC, isolation="read_committed") as consumer:
        return [record.offset for record in consumer]


def assert_it_is_over(client: seglog.Client, running: Daemon, who: Who) -> None:
    """Nothing of it counts, what it held back is read, its producer is refused, and the next one goes on."""
    assert committed(client) == [*BEFORE, BEGIN + 1]
    with Wire(running.kafka_port) as wire:
        story = Story(wire, TOPIC)
        story.produce(who, version=12)
        story.end(who, version=5)
        assert story.lines == [
            "produce v12: INVALID_PRODUCER_ID_MAPPING -1",
            "commit v5: INVALID_PRODUCER_ID_MAPPING none/-1",
        ]
        following = story.init()
        story.produce(following, version=12)
        story.end(following, version=5)
        story.settle()
    assert committed(client) == [*BEFORE, BEGIN + 1, BEGIN + 3]


def test_ping_names_it_and_kafkas_own_tool_finds_and_ends_it(tmp_path: Path) -> None:
    with hanging(tmp_path) as (running, who), seglog.connect(running.address, connect_timeout=60) as client:
        with client.producer(TOPIC) as producer:
            assert producer.send("held back").result().offset == BEGIN + 1
        assert committed(client) == BEFORE
        named = f"`seglog transaction abort-hanging {TOPIC} 0 {BEGIN}`"
        wait_until(lambda: named in asked(running, "ping"), "ping names it")
        tools = Tools(running.kafka_port)

        def ask(*arguments: str) -> str:
            return tools.run("run", "TransactionsCommand", arguments=(*arguments, "--topic", TOPIC, "--partition", "0"))

        _, found = ask("find-hanging", "--max-transaction-timeout", "0").splitlines()
        assert found.split()[:3] == [TOPIC, "0", str(who.producer_id)]
        ask("abort", "--start-offset", str(BEGIN))
        assert len(ask("find-hanging", "--max-transaction-timeout", "0").splitlines()) == 1
        assert f"no open transaction begins at offset {BEGIN}" in abort(running)
        assert_it_is_over(client, running, who)
