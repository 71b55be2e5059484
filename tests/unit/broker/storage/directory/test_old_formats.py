"""Messages of magic 0 and 1, of before Kafka 0.11: a start refuses them, and whatever meets them loses none."""

import pytest

from seglog_broker.backup.source import open_source
from seglog_broker.kafka_export.source import read_source
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.batch_scan import BatchScan, OldMessage
from seglog_protocol.checkpoint_files import RECOVERY_POINT_CHECKPOINT, encode_offsets
from seglog_protocol.errors import LogDirectoryError
from seglog_protocol.segment_files import encode_offset_entry
from tests.logs import OLD_MESSAGE, ManualClock, add_bytes, append_one, batch, old_message, read_around
from tests.support import each_case
from tests.unit.broker.inspect.check import support
from tests.unit.broker.inspect.check.support import check, findings, path_of, written
from tests.unit.broker.inspect.dump.support import damage, facts
from tests.unit.broker.storage.directory.directories import opened as start
from tests.unit.clients.directory.files import batch_at

OLD = {
    "magic 0": "000000000000000000000011165764b10000000000016b000000027630",
    "magic 1": OLD_MESSAGE,
    "gzip": "000000000000000100000052d6692d2201010000000000000000ffffffff0000003c1f8b0800704b0b6b02ff6360800349cf12b5"
    "478c400663f7f9a7192011c66c20c1546600550092935c7a2d4a1aae8811a1c81000e119c2d54a000000",
}
"""As a client of that time wrote them; the last is a message around two others."""

DATA = "/data"
LOGS = [f"{DATA}/old-0/{base:020d}.log" for base in (0, 4, 8)]


@pytest.mark.parametrize("name", OLD)
def test_a_message_is_known_by_its_checksum(name: str) -> None:
    data = bytes.fromhex(OLD[name])

    def found(content: bytes) -> OldMessage | None:
        fs = ForgetfulFileSystem()
        fs.load({"/f": content})
        return BatchScan(fs.open("/f"), len(content)).old_message_at(0)

    assert found(data) == (len(data), int(name == "gzip"))
    for bit in range(8 * (len(data) - 8)):  # of all but the offset, which is not covered
        assert found((int.from_bytes(data) ^ 1 << bit).to_bytes(len(data))) is None


INDEX = LOGS[0].replace(".log", ".index")
NEW = [batch_at(0), batch_at(1)]
FORMS: dict[str, dict[str, bytes]] = {
    "above the recovery point": {LOGS[0]: old_message(0) + old_message(1)},
    "below it": {
        LOGS[0]: old_message(0) + old_message(1),
        f"{DATA}/{RECOVERY_POINT_CHECKPOINT}": encode_offsets({("old", 0): 2}),
    },
    "before newer ones in a segment": {LOGS[0]: old_message(0) + old_message(1) + batch_at(2), LOGS[1]: batch_at(4)},
    "behind newer ones": {
        LOGS[0]: NEW[0] + NEW[1] + old_message(2),
        INDEX: encode_offset_entry(1, len(NEW[0])) + bytes(80),
    },
    "in a segment between others": {LOGS[0]: NEW[0], LOGS[1]: old_message(4), LOGS[2]: batch_at(8)},
    "before an empty segment": {LOGS[0]: NEW[0] + old_message(1), LOGS[1]: b""},
}


def opened(fs: ForgetfulFileSystem) -> list[str]:
    directory = start(fs)
    directory.close()
    return directory.report.problems


@each_case("is_between", [False, True])
@each_case("form", FORMS)
def test_a_directory_with_them_is_refused_before_anything_is_changed(form: str, is_between: bool) -> None:
    fs = ForgetfulFileSystem()
    if is_between:  # Kafka had it after seglog
        assert opened(fs) == []
        fs.unlink(f"{DATA}/.kafka_cleanshutdown")
        fs.load({f"{DATA}/.kafka_cleanshutdown": b'{"version":0,"brokerEpoch":47}'})
        for path in FORMS[form].keys() & fs.snapshot().keys():
            fs.unlink(path)
    fs.load({f"{DATA}/new-0/{0:020d}.log": batch_at(0), **FORMS[form]})
    before = fs.snapshot()
    with pytest.raises(LogDirectoryError, match=r"does not read: in old-0\. Nothing was changed\. Start a Kafka on it"):
        opened(fs)
    assert (fs.snapshot(), fs.open_files) == (before, [])


@pytest.mark.parametrize("content", [bytes(4096), NEW[0] + bytes(300), NEW[0][:16] + b"\1" + NEW[0][17:] + NEW[1]])
def test_what_only_looks_like_them_is_not_refused(content: bytes) -> None:
    fs = ForgetfulFileSystem()
    fs.load({LOGS[0]: content})
    assert not any("message format" in problem for problem in opened(fs))


def test_where_an_earlier_version_adopted_them_nothing_cuts_them_and_no_offset_is_given_again() -> None:
    fs = written(clean=False)
    messages, end = old_message(23) + old_message(24), len(read_file(fs, path_of(20)))
    add_bytes(fs, path_of(20), messages)
    directory = support.opened(fs)
    log = directory.logs["commits", 0]
    [lost] = log.state.damaged
    assert (lost.start_offset, lost.end_offset, lost.position) == (23, 25, end)
    assert append_one(log, batch(b"next", timestamp=9_000_000_000_000)).base_offset == 25
    assert [record.offset for record in read_around(log)] == [*range(23), 25]
    found = log.find_timestamp(8_000_000_000_000)
    assert found is not None
    assert found.offset == 25
    assert len(list(log.retention.judge_segments())) == 4
    assert directory.close() == []
    reason = "it is in Kafka's old message format 1, which seglog does not read"
    assert any(reason in finding.what for finding in findings(check(fs)))
    assert [(start, reason in why) for start, _, why in damage(facts(fs, path_of(20)))] == [(end, True)]
    sizes = {file.name: file.size for file in read_source(fs, support.DATA).partitions["commits", 0].files}
    assert sizes[path_of(20).rpartition("/")[2]] == end + len(messages)
    with open_source(fs, ManualClock(), support.DATA, support.configured()) as source:
        [copied] = [file for file in source.files if file.path.endswith(path_of(20).rpartition("/")[2])]
        assert read_file(fs, f"{source.path}/{copied.path}")[end:] == messages
