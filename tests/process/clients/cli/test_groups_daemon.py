"""``seglog group`` with the real daemon: a live member keeps its group, and what is committed outlives a restart."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import seglog
from seglog.cli import main
from seglog.client import Client
from seglog.groups import commit_offsets
from seglog_protocol.errors import MemberIdRequiredError
from seglog_protocol.messages import (
    CommitOffset,
    CommitOffsetsReply,
    CommitOffsetsRequest,
    JoinGroupReply,
    JoinGroupRequest,
    JoinProtocol,
    LeaveGroupReply,
    LeaveGroupRequest,
    LeavingGroupMember,
    SyncGroupAssignment,
    SyncGroupReply,
    SyncGroupRequest,
)
from tests.processes import Daemon, daemon

Group = Callable[..., tuple[int, list[str], str]]

# Kafka's ConsumerProtocolSubscription to clicks, and ConsumerProtocolAssignment of clicks-1.
_SUBSCRIPTION: Final = b"\0\0" + b"\0\0\0\1" + b"\0\6clicks" + b"\xff\xff\xff\xff"
_ASSIGNMENT: Final = b"\0\0" + b"\0\0\0\1" + b"\0\6clicks" + b"\0\0\0\1\0\0\0\1" + b"\xff\xff\xff\xff"


@contextmanager
def member(client: Client, group: str) -> Iterator[str]:
    """The only member of a group, in the words of the protocol: it reads clicks-1 and has committed offset 5 there."""
    protocols = [JoinProtocol("range", _SUBSCRIPTION)]

    def join(member_id: str | None) -> JoinGroupReply:
        request = JoinGroupRequest(group, 60_000, 60_000, protocols, member_id=member_id, client_id="worker")
        return client.call(request, JoinGroupReply)[0]

    try:
        joined = join(None)
    except MemberIdRequiredError as error:
        joined = join(error.member_id)
    me, generation = joined.member_id, joined.generation
    assigned = [SyncGroupAssignment(me, _ASSIGNMENT)]
    client.call(SyncGroupRequest(group, me, generation, assignments=assigned), SyncGroupReply)
    offsets = [CommitOffset("clicks", 1, 5, metadata="by hand")]
    client.call(CommitOffsetsRequest(group, offsets, member_id=me, generation=generation), CommitOffsetsReply)
    yield me
    client.call(LeaveGroupRequest(group, [LeavingGroupMember(me)]), LeaveGroupReply)


@pytest.fixture
def group(capfd: pytest.CaptureFixture[str]) -> Group:
    """Run ``seglog group``: exit code, lines of its output with blanks pressed together, stderr."""

    def run(running: Daemon, *arguments: str) -> tuple[int, list[str], str]:
        code = main(["--server", running.address, "group", *arguments])
        sys.stdout.flush()
        out, error = capfd.readouterr()
        return code, [" ".join(line.split()) for line in out.splitlines()], error

    return run


def filled(client: Client) -> None:
    client.create_topic("clicks", 2)
    client.create_topic("orders", 1)
    for topic in ("clicks", "orders"):
        with client.producer(topic) as producer:
            for number in range(20):
                producer.send(b"v", partition=number % 2 if topic == "clicks" else 0)


def test_while_a_member_lives_nothing_is_reset_or_deleted_and_then_it_is(tmp_path: Path, group: Group) -> None:
    with daemon(tmp_path / "data") as running, seglog.connect(running.address) as client:
        filled(client)
        with member(client, "app") as member_id:
            code, out, error = group(running, "describe", "app")
            assert (code, error) == (0, "")
            assert out[0] == "app: classic, Stable, generation 1, assignor range, 1 member"
            assert out[1].startswith("lag 5 records in 1 partition, the oldest ")
            assert out[4] == "TOPIC PARTITION COMMITTED LOG END LAG BEHIND KEPT OWNER METADATA"
            assert out[5].startswith("clicks 1 5 10 5 ")
            assert out[5].endswith(f" {member_id} by hand")
            assert out[8].startswith(f"{member_id} worker 127.0.0.1 1 min ")
            assert out[8].endswith(" ago clicks 1")
            assert group(running, "reset", "app", "--to", "earliest", "--all-topics", "--execute") == (
                4,
                [],
                f"seglog: group 'app' has live members: stop them first; members: {member_id} (127.0.0.1)\n",
            )
            deleted = group(running, "delete", "app")
            assert deleted == group(running, "reset", "app", "--to", "1", "--all-topics"), "the same words"
            assert group(running, "delete", "app", "--topic", "clicks")[0] == 4
            assert group(running, "list")[1][1:] == ["app classic Stable 1 1 -"]

        typed = ("reset", "app", "--to", "+3", "--topic", "clicks:1")
        code, out, error = group(running, *typed)
        assert (code, out[1:]) == (0, ["clicks 1 5 8 +3"])
        assert "nothing is changed" in error
        assert group(running, *typed, "--execute")[1][1:] == ["clicks 1 5 8 +3", "app: 1 offset committed"]
        assert group(running, "reset", "app", "--to", "7", "--topic", "orders", "--execute")[0] == 0
        code, out, _ = group(running, "describe", "app")
        assert out[0] == "app: classic, Empty, generation 2, 0 members"
        assert out[3].startswith("empty since ")
        assert out[4].startswith("expires in 6 d 23 h, at ")
        assert [line.split()[:5] for line in out[7:]] == [
            ["clicks", "1", "8", "10", "2"],
            ["orders", "0", "7", "20", "13"],
        ]
        assert group(running, "delete", "app", "--topic", "orders")[1] == ["app: 1 offset of orders deleted"]
        assert group(running, "delete", "app")[1] == ["app: deleted"]
        assert group(running, "describe", "app") == (4, [], "seglog: there is no group app\n")
        assert group(running, "list") == (0, [], "")
        assert running.stop() == 0


def test_committed_offsets_after_a_kill(tmp_path: Path, group: Group) -> None:
    """What is committed outlives a kill and an offset beyond the log is clamped then."""
    with daemon(tmp_path / "data") as running:
        with seglog.connect(running.address) as client:
            filled(client)
            client.converse(commit_offsets("app", {("clicks", 0): 3, ("clicks", 1): 12, ("orders", 0): 20}))
        code, before, error = group(running, "describe", "app", "--json")
        after: list[str] = []
        assert code == 1
        assert "clicks-1: committed offset 12 is beyond the end of the log, 10" in error
        running.kill()
        running.start()
        while code:  # until what was committed is loaded and clamped; bounded by the timeout of every test
            code, after, error = group(running, "describe", "app", "--json")
        assert error == ""
        assert '"event": "committed_offsets_clamped"' in running.log_text()
        assert group(running, "list", "--lag")[1][1] == "app classic Empty 0 3 7 in 6 d 23 h"
        assert running.stop() == 0
    was, is_now = (json.loads(told[0])["offsets"] for told in (before, after))
    assert [offset["offset"] for offset in was] == [3, 12, 20]
    assert [offset["offset"] for offset in is_now] == [3, 10, 20]
    for name in ("committed_ms", "expires_ms"):
        assert [is_now[number][name] for number in (0, 2)] == [was[number][name] for number in (0, 2)]


def test_what_a_group_has_printed_is_not_printed_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def consume(*arguments: str) -> tuple[int, int, str]:
        """Exit code, number of lines printed, stderr."""
        code = main(["--server", running.address, "consume", "clicks", "--group", "app", *arguments])
        out, error = capfd.readouterr()
        return code, len(out.splitlines()), error

    with daemon(tmp_path / "data") as running:
        with seglog.connect(running.address) as client:
            filled(client)
            assert consume("--count", "5")[:2] == (0, 5)
            committed = sum(found.offset or 0 for found in client.group_offsets("app"))
            assert committed == 5
            assert consume() == (0, 15, "")
            code, printed, told = consume()
            assert (code, printed, "has no record that group app has still to read" in told) == (0, 0, True)
            client.reset_group("app", "earliest", ["clicks"])
            assert consume() == (0, 20, "")
        assert running.stop() == 0
