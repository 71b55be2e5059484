"""Consumers in groups against a real broker: the blocking face, and what is the same on trio."""

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import seglog
from seglog.testing import Broker
from tests.processes import PATIENCE_SECONDS, Daemon, clean_environment, seglog_command
from tests.unit.clients.cli.conftest import Typed
from tests.unit.clients.faces import Connect


def send(broker: Broker | Daemon, values: range, *, partitions: int = 4) -> None:
    with seglog.connect(broker.address) as client:
        client.create_topic("t", partitions=partitions, exist_ok=True)
        with client.producer("t") as producer:
            for value in values:
                producer.send(str(value), partition=value % partitions)


async def values(consumer: Any, count: int | None = None) -> list[int]:
    """Of so many records of a loop that is left then, or of all."""
    found: list[int] = []
    async for record in consumer:
        found.append(int(record.value or b""))
        if len(found) == count:
            break
    return found


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with suppress(seglog.GroupError):  # nobody has joined yet, or a broker that has started reads its groups
            if is_so():
                return
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def commit_as_member(client: seglog.Client, group: str, offset: int) -> None:
    """Join, and commit this offset for partition 0 of ``t``, which has records."""
    with client.consumer("t", group=group, auto_commit=False) as consumer:
        next(iter(consumer))
        consumer.commit({0: offset})


class Told:
    """What a consumer was told of its partitions, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def assigned(self, partitions: list[int]) -> None:
        self.events.append(("assigned", partitions))

    def revoked(self, partitions: list[int], lost: bool) -> None:
        self.events.append(("lost" if lost else "revoked", partitions))


# --- Alone ------------------------------------------------------------------------------------------------------------


async def test_a_consumer_goes_on_where_the_group_was(group_broker: Broker, connect: Connect) -> None:
    send(group_broker, range(100))
    told = Told()
    async with connect(group_broker.address) as client:
        async with client.consumer("t", group="app", on_assigned=told.assigned, on_revoked=told.revoked) as consumer:
            first = await values(consumer, 50)
            assert await consumer.committed() == {}
        assert told.events == [("assigned", [0, 1, 2, 3]), ("revoked", [0, 1, 2, 3])]
        assert (await client.describe_group("app")).members == []
        async with client.consumer("t", group="app", follow=False) as consumer:
            second = await values(consumer)
            assert sum(consumer.positions().values()) == 100
        assert (await client.describe_group("app")).members == []
        assert set(first) | set(second) == set(range(100))
        # the record that the program had in hand when it left the loop comes once more
        assert sorted((Counter(first) + Counter(second)).values()) == [1] * 99 + [2]
        async with client.consumer("t", group="app", follow=False) as consumer:
            assert await values(consumer) == []
            committed = await consumer.committed()
            assert {partition: known.offset for partition, known in committed.items()} == consumer.positions()


def read_until_closed(consumer: seglog.GroupConsumer) -> None:
    with pytest.raises(seglog.ClientClosedError):
        list(consumer)


def _offsets(client: seglog.Client, group: str) -> dict[int, int | None]:
    return {found.partition: found.offset for found in client.group_offsets(group)}


async def test_the_program_commits_itself(group_broker: Broker, connect: Connect) -> None:
    send(group_broker, range(10), partitions=2)
    async with connect(group_broker.address) as client:
        async with client.consumer("t", group="app", auto_commit=False) as consumer:
            with pytest.raises(seglog.GroupError, match="no member"):
                await consumer.commit()
            async for record in consumer:
                if record.partition == 1 and record.offset == 2:
                    await consumer.commit(metadata="so far")
                    break
            assert {p: (c.offset, c.metadata) for p, c in (await consumer.committed()).items()} == {
                partition: (offset, "so far") for partition, offset in consumer.positions().items()
            }
            await consumer.commit({1: 1})  # on purpose
            with pytest.raises(ValueError, match="does not read partition 7"):
                await consumer.commit({7: 0})
            with pytest.raises(seglog.GroupError, match="4,096"):
                await consumer.commit(metadata="x" * 5000)
        async with client.consumer("t", group="app", auto_commit=False, follow=False) as consumer:
            assert [record.offset async for record in consumer if record.partition == 1] == [1, 2, 3, 4]
            assert (await consumer.committed([1]))[1].offset == 1


async def test_start_is_for_partitions_without_an_offset_and_out_of_range(
    group_broker: Broker, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    starts: list[tuple[str | int | dict[int, int], int]] = [
        ("earliest", 5),
        ("latest", 10),
        (7, 7),
        (2, 5),
        (99, 10),
        ({0: 8}, 8),
        ("-0s", 10),
    ]
    send(group_broker, range(10), partitions=1)
    async with connect(group_broker.address) as client:
        await client.truncate_topic("t", {0: 2})
        for number in range(len(starts)):
            await client.reset_group(f"old{number}", 2, "t")
        await client.truncate_topic("t", {0: 5})
        for number, (start, expected) in enumerate(starts):
            async with client.consumer("t", group=f"new{number}", start=start, follow=False) as consumer:
                await values(consumer)
                assert await consumer.committed() == {}, start
            (committed,) = await client.group_offsets(f"new{number}")
            assert committed.offset == 10, start
            gaps: list[seglog.ConsumerGap] = []
            caplog.clear()
            old = f"old{number}"
            async with client.consumer("t", group=old, start=start, follow=False, on_gap=gaps.append) as consumer:
                assert await values(consumer) == list(range(expected, 10)), start
                assert [(gap.start, gap.end, gap.reason) for gap in consumer.gaps] == [(2, 5, "truncated")], start
            assert [(gap.start, gap.end) for gap in gaps] == [(2, 5)], start
            why = "3 offsets of t-0 (2 to 4) went before the group read them: truncated"
            assert caplog.messages == [f"{old}: {why}; it goes on at {expected}"]


def test_an_offset_beyond_the_log_end_is_told_with_where_the_group_goes_on(
    group_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    send(group_broker, range(10), partitions=1)
    with seglog.connect(group_broker.address) as client:
        commit_as_member(client, "app", 500)
        caplog.clear()  # the warning about that commit
        with client.consumer("t", group="app", start=7, follow=False) as consumer:
            assert [record.offset for record in consumer] == [7, 8, 9]
            assert not consumer.gaps
        why = "t-0 ends at 10, before offset 500, which the group would have read next"
        assert caplog.messages == [f"app: {why}; it goes on at 7"]


def test_nothing_is_committed_for_a_recreated_topic(group_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """What was read of a topic is never committed for the one that has its name later."""
    send(group_broker, range(20), partitions=1)
    with seglog.connect(group_broker.address) as client, seglog.connect(group_broker.address) as other:
        with client.consumer("t", group="app") as consumer:
            records = iter(consumer)
            assert [next(records).offset for _ in range(10)] == list(range(10))
            other.delete_topic("t")
            send(group_broker, range(100, 150), partitions=1)
            with pytest.raises(seglog.InconsistentTopicIdError, match="t was deleted and made again"):
                consumer.commit()
            with pytest.raises(seglog.UnknownTopicError, match="topic t was deleted while it was read"):
                list(records)
        assert caplog.messages == ["app: offsets were not committed: topic t was deleted"]
        assert _offsets(other, "app") == {}
        with client.consumer("t", group="app", follow=False) as consumer:
            assert [int(record.value or b"") for record in consumer] == list(range(100, 150))
        assert _offsets(other, "app") == {0: 50}


def test_closing_from_another_thread_ends_a_wait_and_leaves_the_group(group_broker: Broker) -> None:
    send(group_broker, range(3), partitions=1)
    with seglog.connect(group_broker.address) as client:
        consumer = client.consumer("t", group="app")
        thread = threading.Thread(target=read_until_closed, args=(consumer,))
        thread.start()
        until(lambda: consumer.positions() == {0: 3})
        consumer.close()
        thread.join(30)
        assert not thread.is_alive()
        assert client.describe_group("app").members == []
        assert _offsets(client, "app") == {0: 3}
        with pytest.raises(seglog.ClientClosedError):
            consumer.commit()
        with pytest.raises(seglog.ClientClosedError):
            consumer.committed()


def test_a_forked_child_leaves_the_membership_alone(group_broker: Broker) -> None:
    send(group_broker, range(3), partitions=1)
    with seglog.connect(group_broker.address) as client, client.consumer("t", group="app") as consumer:
        next(iter(consumer))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                consumer.commit()
            except seglog.ClientError:
                consumer.close()
                code = 0
            os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        consumer.commit()
        assert len(client.describe_group("app").members) == 1


# --- The command line -------------------------------------------------------------------------------------------------


def test_the_command_goes_on_where_the_group_is_and_commits_what_it_printed(group_broker: Broker, typed: Typed) -> None:
    send(group_broker, range(100))
    command = ("--server", group_broker.address, "consume", "t", "--group", "app")
    first, second, third = typed(*command, "--count", "30"), typed(*command), typed(*command)
    assert (first[0], first[2], second[0], second[2]) == (0, "", 0, "")
    assert len(first[1].split()) == 30
    assert sorted(map(int, (first[1] + second[1]).split())) == list(range(100)), "each once: it ends by itself"
    assert third[:2] == (0, "")
    assert "t has no record that group app has still to read" in third[2]
    code, _, errors = typed(*command, "--partition", "1")
    assert (code, "--partition does not go with --group" in errors) == (2, True)


def test_an_interrupt_of_the_command_commits_and_leaves(group_broker: Broker) -> None:
    send(group_broker, range(40))
    command = seglog_command(group_broker.address, "consume", "t", "--group", "app", "--follow")
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        found = {int(process.stdout.readline()) for _ in range(40)}
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert found == set(range(40))
    with seglog.connect(group_broker.address) as client:
        assert client.describe_group("app").members == []
        assert sum(offset or 0 for offset in _offsets(client, "app").values()) >= 39
