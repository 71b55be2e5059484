"""A topic that is deleted and created again under its readers, with a longer log than before.

Offsets of the former topic exist in the new one too, and mean other records: readers report that and stop.
"""

import subprocess

import pytest
import trio

import seglog
import seglog.trio
from tests.processes import Daemon, clean_environment, seglog_command

OLD = [b"old %d" % number for number in range(3)]
NEW = [b"new %d" % number for number in range(30)]


@pytest.fixture
def running(emptied: Daemon) -> Daemon:
    """A daemon with a topic t of three records."""
    with seglog.connect(emptied.address) as client:
        make(client, OLD)
    return emptied


def make(client: seglog.Client, values: list[bytes]) -> None:
    """Create the topic, with each record in its own batch."""
    client.create_topic("t")
    with client.producer("t") as producer:
        for value in values:
            producer.send(value)
            producer.flush()


def make_again(running: Daemon, values: list[bytes]) -> None:
    with seglog.connect(running.address) as client:
        client.delete_topic("t")
        make(client, values)


def read_on(consumer: seglog.Consumer, found: list[bytes | None]) -> None:
    """Collect the records before the error that ends the consumer."""
    for record in consumer:
        found.append(record.value)  # noqa: PERF401 - what came before the error counts


async def read_on_trio(consumer: seglog.trio.Consumer, found: list[bytes | None]) -> None:
    async for record in consumer:
        found.append(record.value)  # noqa: PERF401


def read(running: Daemon, **options: object) -> list[bytes | None]:
    with seglog.connect(running.address) as client, client.consumer("t", **options) as consumer:  # type: ignore[call-overload]
        return [record.value for record in consumer]


@pytest.mark.parametrize("options", [{}, {"partitions": [0]}, {"start": {0: 0}}, {"start": {0: 0}, "follow": True}])
def test_a_consumer_never_crosses_into_a_recreated_topic(running: Daemon, options: dict[str, object]) -> None:
    """A consumer in the middle of the old topic fails, and returns no record of the new one."""
    with (
        seglog.connect(running.address) as client,
        # One batch in an answer, and one answer ahead: the last old one has not been asked for yet.
        client.consumer("t", partition_bytes=1, on_out_of_range="earliest", **options) as consumer,  # type: ignore[call-overload]
    ):
        found = [next(iter(consumer)).value]
        make_again(running, NEW)
        with pytest.raises(seglog.InconsistentTopicIdError, match="was deleted and made again") as caught:
            read_on(consumer, found)
        assert caught.value.topic_id == client.describe_topic("t").id
        with pytest.raises(seglog.InconsistentTopicIdError):
            read_on(consumer, found)
        consumer.seek("earliest")
        with pytest.raises(seglog.InconsistentTopicIdError):
            read_on(consumer, found)
        assert found in (OLD[:1], OLD[:2]), "what was on its way already has come"
    assert read(running) == NEW


def test_a_waiting_consumer_gets_an_error_for_the_deletion_or_the_new_topic(running: Daemon) -> None:
    with seglog.connect(running.address) as client, client.consumer("t", start=0, follow=True) as consumer:
        records = iter(consumer)
        assert [next(records).value for _ in OLD] == OLD
        client.delete_topic("t")
        with pytest.raises(seglog.UnknownTopicError):
            next(iter(consumer))
        make(client, NEW)
        with pytest.raises(seglog.InconsistentTopicIdError):
            next(iter(consumer))


def test_a_consumer_that_was_cut_off_meanwhile_says_so_when_it_is_back(running: Daemon) -> None:
    with seglog.connect(running.address) as client, client.consumer("t", start=0, follow=True) as consumer:
        records = iter(consumer)
        assert [next(records).value for _ in OLD] == OLD
        running.stop()
        running.start()
        make_again(running, NEW)
        with pytest.raises(seglog.InconsistentTopicIdError):
            next(iter(consumer))


def test_saved_positions_are_used_for_the_topic_that_exists_now(running: Daemon) -> None:
    make_again(running, NEW)
    assert read(running, start={0: 2}) == NEW[2:]


async def test_both_cases_are_the_same_on_trio(running: Daemon) -> None:
    async with seglog.trio.connect(running.address) as client:
        async with (
            client.consumer("t", start=0, partition_bytes=1) as reading,
            client.consumer("t", start=0, follow=True) as waiting,
        ):
            found = [(await anext(aiter(reading))).value]
            assert [(await anext(aiter(waiting))).value for _ in OLD] == OLD
            await client.delete_topic("t")
            with pytest.raises(seglog.UnknownTopicError):
                await anext(aiter(waiting))
            with seglog.connect(running.address) as blocking:
                await trio.to_thread.run_sync(make, blocking, NEW)
            with pytest.raises(seglog.InconsistentTopicIdError, match="was deleted and made again"):
                await anext(aiter(waiting))
            with pytest.raises(seglog.InconsistentTopicIdError):
                await read_on_trio(reading, found)
            assert found in (OLD[:1], OLD[:2])
        async with client.consumer("t") as anew:
            assert [record.value async for record in anew] == NEW


def test_a_following_command_line_ends_with_the_error(running: Daemon) -> None:
    # More than a pipe and two answers hold: when the first line is here, the command is far from the end.
    old, new = ([b"%s %d " % (word, number) + b"x" * 100_000 for number in range(50)] for word in (b"old", b"new"))
    make_again(running, old)
    with subprocess.Popen(
        seglog_command(running.address, "consume", "t", "--follow", "--from", "earliest"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        make_again(running, [*new, *new])
        printed = [first, *process.stdout]
        said = process.stderr.read().decode()
    assert [line.rstrip(b"\n") for line in printed] == old[: len(printed)]
    assert len(printed) < len(old)
    assert said == (
        "seglog: topic t was deleted and made again, and positions in the former topic mean nothing in this one; "
        "start the consumer again: at the earliest, at the latest, or at a moment\n"
    )
    assert process.returncode == 4
