"""What file systems, Kubernetes, NAS and desktops put into a root: whoever reads or fills a log directory leaves it."""

from typing import Final

import pytest

from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.restoring import restore
from seglog_broker.backup.source import open_source
from seglog_broker.backup.store import BackupStore
from seglog_broker.backup.taking import take_backup
from seglog_broker.config import load_config
from seglog_broker.inspect.check.directory import CheckOptions, check_directory
from seglog_broker.inspect.dump.kinds import DumpOptions, facts_of
from seglog_broker.inspect.facts import Note
from seglog_broker.inspect.findings import Finding
from seglog_broker.kafka_export.command import refuse_destination
from seglog_broker.kafka_export.source import ExportError, read_source
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.logs import ManualClock, append_one, batch
from tests.unit.broker.storage.steps import create_topic

NEIGHBOURS: Final = {
    *("lost+found/x", "System Volume Information/x", "$RECYCLE.BIN/x", "@eaDir/x", "#recycle/x", "..2026_11_28_00/x"),
    *(".snapshot/daily/x", ".snapshots/x", ".zfs/x", ".Trash-0/files/x", ".Trash-1000/files/x", ".Trashes/x"),
    *(".nfs00000a1", ".fuse_hidden01", ".DS_Store", "..data/x", ".fseventsd/x", ".Spotlight-V100/x", ".AppleDouble/x"),
}
TOPICS: Final = ("t", ".Trash", "00000000000000000000.log", "leader-epoch-checkpoint", "meta.properties")


def test_neighbours_stay_and_no_topic_is_taken_for_something_else() -> None:
    fs, clock = ForgetfulFileSystem(), ManualClock()
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    roots = ("/data", "/backups", "/restored", "/exported")
    there = {f"{root}/{name}": b"x" for root in roots for name in NEIGHBOURS if name != ".Trash-0/files/x"}
    fs.load(there)
    for _ in range(2):
        directory = open_log_directory(fs, clock, config, "/data")
        for topic in TOPICS:
            if topic not in directory.registry.topics:
                create_topic(directory, topic, 1, {})
            append_one(directory.logs[topic, 0], memoryview(bytearray(batch(b"v", timestamp=1000))))
        assert directory.close() == []
    assert [
        str(found) for found in check_directory(fs, "/data", config, CheckOptions()) if isinstance(found, Finding)
    ] == []
    assert [fact for fact in facts_of(fs, "/data", DumpOptions()) if isinstance(fact, Note)] == []
    destination = DirectoryDestination(fs, "/backups")
    with open_source(fs, clock, "/data", config) as source:
        manifest, _ = take_backup(fs, source, BackupStore(destination), clock.now)
    restore(fs, manifest, destination, "/restored", "AAAAAAAAAAAAAAAAAAAAAA")
    for path in ("/data", "/restored"):
        opened = open_log_directory(fs, clock, config, path)
        assert {topic: log.log_end_offset for (topic, _), log in opened.logs.items()} == dict.fromkeys(TOPICS, 2)
        assert opened.close() == []
        assert {topic for topic, _ in read_source(fs, path).partitions} == {*TOPICS}
    with pytest.raises(ExportError, match="not start beside a lost"):  # a Kafka would refuse the directory
        refuse_destination(fs, "/data", "/exported")
    assert all(fs.exists(path) for path in there)
