"""Kafka Connect on the Kafka listener: its workers share their work through groups.

One of them is killed, and the broker is killed under them: what they take on afterwards comes out once.

``SEGLOG_TRANSACTION_RECORDS`` and ``SEGLOG_TRANSACTION_KILLS`` make those in transactions longer; 500,000 and 10 are
what was run by hand.
"""

import json
import os
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest

import seglog
from tests.foreign_programs import skipped_where_absent
from tests.interop.client_programs import folder_of, java_program
from tests.interop.group_members import Member, ended
from tests.processes import free_port, kafka_daemon, wait_until

RECORDS = int(os.environ.get("SEGLOG_TRANSACTION_RECORDS", "4000"))
KILLS = int(os.environ.get("SEGLOG_TRANSACTION_KILLS", "2"))
PART: Final = RECORDS // (2 * KILLS)
"""The records between one kill and the next."""

pytestmark = [pytest.mark.timeout(600 + 60 * KILLS)]

# The consumers of a sink's tasks are members of a group of their own, which waits for those of a killed worker as well:
# by default 45 s, half of what a test waits for anything. A worker sees to it that the task of a dead one
# writes nothing more, before it goes on with it.
WORKER: Final = """
bootstrap.servers=127.0.0.1:{kafka_port}
listeners=http://127.0.0.1:{port}
plugin.path={plugins}
group.id=workers
session.timeout.ms=6000
heartbeat.interval.ms=1000
scheduled.rebalance.max.delay.ms=1000
offset.flush.interval.ms=500
consumer.session.timeout.ms=6000
consumer.heartbeat.interval.ms=1000
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
config.storage.topic=connect-configs
offset.storage.topic=connect-offsets
status.storage.topic=connect-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
exactly.once.source.support=enabled
"""


class Worker:
    """A worker of Kafka Connect in distributed mode."""

    def __init__(self, folder: Path, name: str, kafka_port: int) -> None:
        with skipped_where_absent("Kafka Connect"):
            command = java_program("org.apache.kafka.connect.cli.ConnectDistributed", "frameworks")
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        config = folder / f"{name}.properties"
        config.write_text(WORKER.format(kafka_port=kafka_port, port=port, plugins=folder_of("frameworks") / "plugins"))
        self.process = Member([*command, str(config)], folder / f"{name}.out")

    def ask(self, path: str, config: "dict[str, str] | None" = None) -> Any:
        """What its REST interface answers; None while it does not."""
        body = None if config is None else json.dumps(config).encode()
        request = urllib.request.Request(
            f"http://{self.address}{path}", body, {"Content-Type": "application/json"}, method="PUT" if body else "GET"
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except OSError:
            return None

    def workers_of(self, connector: str) -> set[str]:
        """The addresses of those that run its tasks; empty unless all are running."""
        status = self.ask(f"/connectors/{connector}/status") or {"tasks": []}
        is_running = all(task["state"] == "RUNNING" for task in status["tasks"])
        return {task["worker_id"] for task in status["tasks"]} if is_running else set()


def lines(first: int, last: int) -> str:
    return "".join(f"line {number}\n" for number in range(first, last))


def test_connect_writes_what_a_source_reads_exactly_once_through_kills(tmp_path: Path) -> None:
    """Kills of the worker that has the task, and of the broker, in the middle of what there is to read; and a sink."""
    read, written = tmp_path / "read.txt", tmp_path / "written.txt"
    read.write_text("")
    batch = max(20, RECORDS // 200)
    source = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "tasks.max": "1",
        "file": str(read),
        "topic": "lines",
        "batch.size": str(batch),
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
    }
    with kafka_daemon(tmp_path / "data") as running, seglog.connect(running.address, connect_timeout=60) as client:
        client.create_topic("lines")
        sink = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "tasks.max": "2",
            "file": str(written),
            "topics": "lines",
            "consumer.override.isolation.level": "read_committed",
        }
        workers = [Worker(tmp_path, name, running.kafka_port) for name in ("one", "other")]
        started = [worker.process for worker in workers]
        with ended(started):
            wait_until(lambda: _member_count(client, "workers") == 2, "both are members")
            wait_until(lambda: workers[0].ask("/connectors/source/config", source) is not None, "the source is taken")
            wait_until(lambda: workers[0].ask("/connectors/sink/config", sink) is not None, "the sink is taken")
            assert client.describe_group("workers").group.protocol_type == "connect"
            for number in range(2 * KILLS):
                first = number * PART
                _append(read, lines(first, first + PART))
                wait_until(lambda first=first: len(_committed(client)) > first, "some are copied")  # type: ignore[misc]
                if number % 2:
                    running.kill()
                    running.start()
                    continue
                wait_until(lambda: bool(_workers_of_source(workers)), "the task is running")
                [has_task] = [worker for worker in workers if worker.address in _workers_of_source(workers)]
                has_task.process.kill()
                workers.remove(has_task)
                workers.append(Worker(tmp_path, f"next-{number}", running.kafka_port))
                started.append(workers[-1].process)
            # The source keeps what it has read beyond a batch until there is more to read.
            count = 2 * KILLS * PART
            _append(read, lines(count, count + PART))
            wait_until(lambda: len(_committed(client)) >= count, "all are copied")
            expected = lines(0, count).splitlines()
            wait_until(
                lambda: written.exists() and {*expected} <= {*written.read_text().split("\n")}, "the sink has all"
            )
        assert _committed(client)[:count] == expected


def _committed(client: seglog.Client) -> list[str]:
    with client.consumer("lines", isolation="read_committed") as consumer:
        return [(record.value or b"").decode() for record in consumer]


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as more:
        more.write(text)


def _workers_of_source(workers: list[Worker]) -> set[str]:
    """The address of the worker that runs the task, whichever of them knows."""
    return next((found for worker in workers if (found := worker.workers_of("source"))), set())


def _member_count(client: seglog.Client, group: str) -> int:
    try:
        return len(client.describe_group(group).members)
    except seglog.UnknownGroupError:
        return 0
