"""The process that backs a broker up, with a test in the place of the broker."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seglog_broker.backup import agent_messages as messages
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.points import PointStore, PointWriter
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.logs import append_one, batch, opened_directory
from tests.unit.broker.storage.steps import create_topic

COMMAND = [sys.executable, "-m", "seglog_broker.backup.agent"]


def test_an_agent_publishes_cuts_until_it_is_stopped(tmp_path: Path) -> None:
    data, place = str(tmp_path / "data"), str(tmp_path / "place")
    directory = opened_directory(PosixFileSystem(), data)
    topic = create_topic(directory, "t", 1, {})
    log = directory.logs["t", 0]
    append_one(log, batch(b"a record", timestamp=1000))
    destination = DirectoryDestination(PosixFileSystem(), place)
    PointWriter(destination, directory.cluster_id, "mine")
    destination.put("lease/000000000001.json", [b"of the time when the broker had one"])
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None

        def send(message: messages.ToAgent) -> None:
            assert agent.stdin is not None
            agent.stdin.write(messages.line_of(message))
            agent.stdin.flush()

        begin = messages.Begin(data, place, "", 1e9, 1_000, 86_400_000, 0, directory.cluster_id, "mine")
        send(begin)
        assert messages.from_agent(agent.stdout.readline()) == messages.CutWanted(is_whole=True)
        agent.send_signal(signal.SIGTERM)  # is for the broker
        cut = messages.PartitionCut("t", 0, topic.id, 0, 1, log.segments.active.size, (0,))
        send(messages.Cut(1, 1_764_000_000_000, True, (cut,), registry=directory.registry.content().decode()))
        assert messages.from_agent(agent.stdout.readline()) == messages.ChangesWanted()
        send(messages.Changes(()))
        published = messages.from_agent(agent.stdout.readline())
        assert isinstance(published, messages.Published)
        assert messages.from_agent(agent.stdout.readline()) == messages.Trouble(None)
        send(messages.Stop())
        number = 1
        for line in agent.stdout:
            if messages.from_agent(line) == messages.CutWanted():
                number += 1
                send(messages.Cut(number, 1_764_000_001_000, False, ()))
        assert number > 1
        assert agent.wait(30) == 0
    directory.abandon()
    state = PointStore(destination).at()
    assert state.id == published.id
    assert state.logs["t", 0].log_end == 1
    assert published.written == sum(size for _, size in destination.names())  # and the lease is gone
    assert json.loads((Path(place) / "seglog-backup.json").read_text())["version"] == 2


@pytest.mark.parametrize(("sent", "status"), [(b"", 0), (b"{}\n", 1)])
def test_an_agent_ends_with_its_input_and_with_what_is_no_message(sent: bytes, status: int) -> None:
    ended = subprocess.run(COMMAND, input=sent, check=False, capture_output=True, timeout=60)
    assert ended.returncode == status
    assert (b"ValidationError" in ended.stderr) is bool(status)
