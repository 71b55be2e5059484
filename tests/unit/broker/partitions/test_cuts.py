"""Cuts of partitions that are not well, and what is kept for who follows; of others: ``simulation/test_cuts.py``."""

import errno
import itertools

import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.backup.agent_messages import Cut, PartitionCut, line_of, pieces_of
from seglog_broker.partitions.backup_progress import BackupProgress
from seglog_broker.partitions.commit_round import Flushable
from seglog_broker.partitions.feed import GONE_MAX, Feed
from seglog_broker.testing.forgetful import PROCESS_KILL, Fault, ForgetfulFileSystem
from seglog_protocol.messages import CreateTopicRequest
from tests.appends import append_batch
from tests.cuts import Copier
from tests.logs import batch
from tests.unit.broker.brokers import open_broker

TO = "seglog.backup.to=s3://bucket/backup"


async def with_records(broker: Broker, partitions: int = 2) -> None:
    await broker.create_topic(CreateTopicRequest("t", partitions))
    for number in range(partitions):
        await append_batch(broker, batch(b"v"), "t", number, ack="disk").wait()


async def test_of_a_partition_that_cannot_be_synced_it_has_what_is_on_the_disk_and_of_others_all() -> None:
    fs = ForgetfulFileSystem()
    broker = open_broker(fs, TO)
    await with_records(broker)
    copier = Copier(broker)
    await copier.cut()
    sound = copier.partitions["t", 0].active_size
    for number in 0, 1:
        append_batch(broker, batch(b"w"), "t", number, ack="os")
    fs.inject(Fault("fdatasync", "t-0/00000000000000000000.log", errno.EIO))
    await copier.cut()
    assert (copier.partitions["t", 0].log_end, copier.partitions["t", 0].active_size) == (1, sound)
    assert copier.partitions["t", 1].log_end == 2
    [sentence] = copier.cuts.left_behind.values()
    assert sentence.startswith("the backup has t-0 up to offset 1 alone: ")
    assert BackupProgress(broker.config, broker.commits.feed, copier.cuts).status().reason == sentence


async def test_it_waits_for_recoveries_and_says_so() -> None:
    fs = ForgetfulFileSystem()
    broker = open_broker(fs)
    await with_records(broker)
    broker = open_broker(fs.found_after(PROCESS_KILL), TO, in_line_bytes=0)
    assert len(broker.recoveries) == 2
    progress = broker.backup
    assert progress is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(progress.cuts.cut)
        await wait_all_tasks_blocked()
        assert progress.status().reason == "2 partitions are being recovered"
        nursery.cancel_scope.cancel()


async def test_an_offline_partition_stays_as_the_place_has_it() -> None:
    broker = open_broker(None, TO)
    await with_records(broker)
    broker.directory.report.offline["gone", 0] = "its disk is away"
    assert (await Copier(broker).cut()).kept == (("gone", 0),)


def test_more_partitions_are_deleted_than_are_remembered() -> None:
    feed = Feed()
    feed.follow()
    feed.take()
    for number in range(GONE_MAX):
        feed.note_deleted(Flushable(), ("t", number))
    assert (len(feed.gone), feed.has_lost) == (GONE_MAX, False)
    feed.note_deleted(Flushable(), ("t", GONE_MAX))
    assert (len(feed.gone), feed.has_lost) == (GONE_MAX, True), "the next cut has all that there are"


def test_nothing_is_kept_where_nobody_follows() -> None:
    feed, partition = Feed(), Flushable()
    feed.note_changed(partition, is_replaced=True)
    feed.note_deleted(partition, ("t", 0))
    assert (feed.changed, feed.gone, feed.replaced) == ({}, {}, {})


def test_the_pieces_of_a_line_are_the_line() -> None:
    parts = [[PartitionCut("t", 2 * part + number, "id", 0, 1, 2, (0,)) for number in range(2)] for part in range(3)]
    whole = Cut(
        1, 2, True, tuple(itertools.chain.from_iterable(parts)), (("gone", 1),), '"partitions":[]', (("kept", 2),)
    )
    without = Cut(1, 2, True, (), whole.gone, whole.registry, whole.kept)
    assert b"".join(pieces_of(without, parts)) == line_of(whole)
    assert b"".join(pieces_of(without, [[]])) == line_of(without)
