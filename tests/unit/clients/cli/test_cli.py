"""The command line, whole: what it prints, what it says when it cannot, and its exit codes."""

import json
import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from seglog import __version__
from seglog.cli.arguments import Options
from seglog.cli.consume import GapNotes
from seglog.cli.dispatch import parse
from seglog.core.records import ConsumerGap
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import (
    BrokerStoppingError,
    PartitionOfflineError,
)
from seglog_protocol.frames import encode_value
from seglog_protocol.messages import (
    AlterTopicReply,
    AlterTopicRequest,
    AppendRequest,
    BackupStatus,
    ConfigEntry,
    ConfigValue,
    CreateTopicRequest,
    ExplainedSegment,
    ExplainSegmentsReply,
    ExplainSegmentsRequest,
    HelloReply,
    HelloRequest,
    LagReply,
    LagRequest,
    LagResult,
    Request,
    TruncateReply,
    TruncateRequest,
    TruncateResult,
)
from seglog_protocol.record_batch import CRC_POSITION, parse_header
from tests.support import each_case
from tests.unit.clients.cli.conftest import Said, Typed
from tests.unit.clients.fake_broker import SILENCE, Answer, FakeBroker, Script, fake_broker


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    with fake_broker(topics={"t": 2}) as running:
        monkeypatch.setenv("SEGLOG_SERVER", running.address)
        yield running


def fill(broker: FakeBroker) -> None:
    broker.logs["t"][0].append(encode_batch([(n * 1000, b"k%d" % n, b"v%d" % n, ()) for n in range(3)]))
    broker.logs["t"][1].append(encode_batch([(n * 1000, None, b"w%d" % n, ()) for n in range(2)]))


# --- produce ----------------------------------------------------------------------------------------------------------


def test_a_json_lines_value_is_its_own_bytes(said: Said, broker: FakeBroker) -> None:
    lines = [b'{"ts": 1000,  "path":"a"}', '{"path":"ä","ts":2000 }'.encode(), b'{"path":"\\u00e4","ts":3000}']
    arguments = ("--format", "json", "--key-field", "path", "--timestamp-field", "ts", "--partition", "0")
    error = said(0, "produce", "t", *arguments, stdin=b"\n".join(lines) + b"\n\n")
    assert "3 records to t (2 partitions)" in error
    assert "ack disk" in error
    records = broker.logs["t"][0].records()
    assert [record.value for record in records] == lines
    assert [record.key for record in records] == [b"a", "ä".encode(), "ä".encode()]
    assert [record.timestamp for record in records] == [1000, 2000, 3000]


def test_a_bad_line_stops_the_run_with_its_number_and_everything_before_it_is_sent(
    said: Said, broker: FakeBroker
) -> None:
    error = said(1, "produce", "t", "--format", "json", "--partition", "0", stdin=b"1\n2\nnope\n4\n")
    assert "line 3 is bad: not JSON" in error
    assert "--skip-bad" in error
    assert broker.values() == [b"1", b"2"]


def test_bad_lines_can_be_counted_instead(said: Said, broker: FakeBroker) -> None:
    out = said(0, "produce", "t", "--format", "json", "--skip-bad", "--partition", "0", "--json", stdin=b"1\nx\n3\ny")
    summary = json.loads(out)
    assert (summary["records"], summary["bad_lines"], summary["ack"]) == (2, 2, "disk")
    assert broker.values() == [b"1", b"3"]


def test_text_lines_from_a_file_with_headers_and_compression(typed: Typed, broker: FakeBroker, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\r\n\ntwo\xff")
    code, _, error = typed(
        "produce", "t", str(file), "--partition", "1", "--header", "a=1", "--header", "b=x=y", "--compression", "zstd"
    )
    assert (code, "%|" in error) == (0, False), "no progress bar outside a terminal"
    records = broker.logs["t"][1].records()
    assert [record.value for record in records] == [b"one", b"", b"two\xff"]
    assert records[0].headers == (("a", b"1"), ("b", b"x=y"))


def test_raw_input_is_one_record(typed: Typed, broker: FakeBroker) -> None:
    assert typed("produce", "t", "--format", "raw", "--partition", "0", stdin=b"a\nb\n")[0] == 0
    assert broker.values() == [b"a\nb\n"]


def test_records_older_than_the_topic_keeps_are_warned_about(typed: Typed, said: Said, broker: FakeBroker) -> None:
    broker.config["t"] = {"retention.ms": ConfigEntry("604800000", "default")}
    error = said(
        0, "produce", "t", "--format", "json", "--timestamp-field", "ts", stdin=b'{"ts":1}\n{"ts":99999999999999}'
    )
    assert "1 record expired on arrival" in error
    broker.config["t"] = {"retention.ms": ConfigEntry("-1", "topic")}
    assert "expired" not in typed("produce", "t", "--format", "json", "--timestamp-field", "ts", stdin=b'{"ts":1}')[2]


def test_records_whose_timestamps_begin_many_segments_are_warned_about(
    typed: Typed, said: Said, broker: FakeBroker
) -> None:
    day_ms = 86_400_000
    broker.config["t"] = {"segment.ms": ConfigEntry(str(7 * day_ms), "default")}
    arguments = ("produce", "t", "--format", "json", "--timestamp-field", "ts")
    lines = [f'{{"ts":{1_700_000_000_000 + days * day_ms}}}\n'.encode() for days in (0, 365, 30)]
    error = said(0, *arguments, stdin=b"".join(lines))
    assert "span 365 d" in error
    assert "up to 53 segments" in error
    assert "seglog topic alter t --config segment.ms=3650d" in error
    assert "span" not in typed(*arguments, stdin=lines[0] + lines[2])[2]
    assert "span" not in typed("produce", "t", stdin=b"".join(lines))[2]


def test_when_every_line_is_bad_nothing_is_right(typed: Typed, said: Said, broker: FakeBroker) -> None:
    arguments = ("produce", "t", "--format", "json", "--skip-bad", "--key-field", "id")
    bad = b'{"name":1}\n{"name":2}\nnope\n{"name":3}\n'
    error = said(1, *arguments, stdin=bad)
    assert "every line is bad, 4 in all, and nothing was sent; line 1: no field 'id' (and 2 like it)" in error
    error = said(0, *arguments, stdin=bad + b'{"id":1}')
    assert "4 bad lines skipped: line 1: no field 'id' (and 2 like it)" in error
    assert typed(*arguments, stdin=b"")[0] == typed(*arguments, stdin=b"\n\n")[0] == 0, "there is no bad line"
    code, out, _ = typed(*arguments, "--json", stdin=bad)
    assert (code, json.loads(out)["commonest_bad_line"]) == (1, "line 1: no field 'id' (and 2 like it)")


def test_reasons_that_differ_in_numbers_are_one_reason(typed: Typed) -> None:
    lines = [b"1 " + b" " * n + b"x" for n in range(5)] + [b"\xff", b"ab\xff"]
    _, _, error = typed("produce", "t", "--format", "json", "--skip-bad", stdin=b"\n".join(lines))
    assert "7 in all, and nothing was sent; line 1: not JSON: Extra data" in error
    assert "(and 4 like it)" in error


LAGS = {
    (0, 5): LagResult(
        "t", 0, 0, 400, 400, 1_699_999_400_000, lost_from_ms=1_700_000_600_000, lost_by_ms=1_700_000_900_000
    ),
    (1, 9): LagResult("t", 1, 9, 9, 9),
    (0, 2): LagResult("t", 0, 3, 400, 400, 1_699_999_400_000, earliest_reason="expired", bytes_to_come=5_000),
    (1, 99): LagResult("t", 1, 9, 9, 9),
}


@pytest.fixture
def lagging(broker: FakeBroker) -> FakeBroker:
    def script(request: Request, _: memoryview) -> Answer | None:
        if not isinstance(request, LagRequest):
            return None
        return LagReply([LAGS[p.partition, p.offset] for p in request.partitions], now_ms=1_700_000_000_000)

    broker.script = script
    return broker


def test_positions_are_told_how_far_they_are_behind(typed: Typed, lagging: FakeBroker, tmp_path: Path) -> None:
    file = tmp_path / "positions.json"
    file.write_text('{"0": 5, "1": 9}')
    code, out, error = typed("offsets", "t", "--position", str(file))
    assert (code, error) == (0, "")
    first, second = (" ".join(line.split()) for line in out.splitlines()[1:])
    assert first == "t 0 5 400 395 10 min 2023-11-14T22:03:20.000Z 0 for 10 min to 15 min"
    assert second == "t 1 9 9 0 0 s - 0 -"
    assert typed("offsets", "t", "--position", "0:5", "--position", "1=9")[1] == out
    assert typed("offsets", "t", "--position", "-", stdin=file.read_bytes())[1] == out
    assert typed("offsets", "t", "--position", str(file), "--partition", "1")[1].splitlines()[1].split()[1] == "1"
    shown = json.loads(typed("offsets", "t", "--position", "0:5", "--json")[1])[0]
    assert (shown["records"], shown["seconds"], shown["seconds_to_loss"], shown["lost"]) == (395, 600.0, 600.0, 0)


def test_positions_outside_the_log_are_told_and_exit_with_1(typed: Typed, said: Said, lagging: FakeBroker) -> None:
    code, out, error = typed("offsets", "t", "--position", "0:2", "--position", "1:99")
    assert code == 1
    assert "for 5,000 more bytes" in out
    assert error.splitlines() == [
        (
            "seglog: t-0: position 2 is below the earliest offset, 3: 1 offset before it cannot be read any more "
            "(expired)"
        ),
        (
            "seglog: t-1: position 99 is beyond the end of the log, 9: the log lost records, or it was not "
            "read from this log"
        ),
    ]
    error = said(1, "offsets", "t", "--position", "-", stdin=b"[1, 2]")
    assert "is not what json.dumps(consumer.positions()) writes" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_line_that_no_batch_holds_is_a_bad_line(said: Said, broker: FakeBroker, compression: str) -> None:
    with broker.changed:
        broker.max_message_bytes = 1_000
    large = random.Random(7).randbytes(5_000).replace(b"\n", b".").replace(b"\r", b".")
    edge = large[:950]  # with its header it is too large
    lines = b"\n".join([b"a", large, b"b", edge, b"c", b"z" * 900])
    arguments = ("produce", "t", "--partition", "0", "--compression", compression)
    error = said(0, *arguments, "--skip-bad", stdin=lines)
    assert "4 records to t" in error
    assert "2 bad lines skipped: line 2: 5," in error
    assert "bytes are more than a batch of t can hold (1,000, the smaller of" in error
    assert broker.values() == [b"a", b"b", b"c", b"z" * 900]
    error = said(1, *arguments, stdin=lines)
    assert "line 2 is bad: 5," in error
    assert "1 record before it sent" in error


def test_of_a_large_input_no_more_is_read_when_no_broker_answers_in_time(said: Said, broker: FakeBroker) -> None:
    broker.script = lambda request, _: SILENCE if isinstance(request, AppendRequest) else None
    lines = (b"x" * 999_999 + b"\n") * 200  # six times what the producer keeps
    error = said(3, "produce", "t", "--delivery-timeout", "0.5", stdin=lines)
    found = re.search(r"not acknowledged: (\d+) records to t.*\n.*acknowledged: 0 of (\d+) records; .* not read", error)
    assert found is not None
    assert found[1] == found[2]
    assert int(found[1]) < 50


# --- consume ----------------------------------------------------------------------------------------------------------


def test_records_are_printed_as_values_json_or_text_from_a_place_to_a_place(
    typed: Typed, said: Said, broker: FakeBroker
) -> None:
    fill(broker)
    code, out, error = typed("consume", "t")
    assert (code, sorted(out.split()), error) == (0, ["v0", "v1", "v2", "w0", "w1"], "")
    out = said(0, "consume", "t", "--from", "@1000", "--partition", "0", "--format", "json", "--count", "1")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"topic": "t", "partition": 0, "offset": 1, "timestamp": 1000, "key": "k1", "value": "v1", "headers": []}
    ]
    assert len(typed("consume", "t", "--count", "4")[1].split()) == 4
    assert typed("consume", "t", "--count", "0")[1] == ""
    assert sorted(typed("consume", "t", "--until", "@1000")[1].split()) == ["v0", "w0"]
    assert typed("consume", "t", "--from", "latest")[1] == ""
    _, out, _ = typed("consume", "t", "--partition", "0", "--offsets", "--keys", "--from", "2")
    assert out == "0:2\t1970-01-01T00:00:02.000Z\tk2\tv2\n"
    assert typed("consume", "t", "--from", "-1h", "--until", "+1h")[0] == 0, "a relative moment needs no equals sign"
    assert typed("consume", "t", "--follow", "--from", "earliest", "--count", "5")[0] == 0


def test_damage_can_be_left_behind_and_every_other_record_is_printed(typed: Typed, broker: FakeBroker) -> None:
    for _ in range(3):
        fill(broker)
    log = broker.logs["t"][0]
    _, whole, _ = typed("consume", "t", "--offsets")
    header = parse_header(log.batches[1])
    damaged = bytearray(log.batches[1])
    damaged[CRC_POSITION] ^= 1
    log.batches[1] = bytes(damaged)
    lost = [f"0:{offset}\t" for offset in range(header.base_offset, header.next_offset)]
    code, out, said = typed("consume", "t", "--offsets", "--skip-damaged")
    assert code == 0
    assert sorted(out.splitlines()) == sorted(line for line in whole.splitlines() if not line.startswith(tuple(lost)))
    assert lost
    assert said == (
        f"seglog: warning: offsets {header.base_offset} to {header.last_offset} of t-0 cannot be read: "
        "the batch there does not match its checksum; skipped\n"
    )
    code, _, said = typed("consume", "t", "--partition", "0")
    assert (code, said.splitlines()[-1]) == (1, "seglog: --skip-damaged continues after it")
    assert said.count("\n") == 2


def test_a_loss_is_told_once_when_its_end_is_known_or_nothing_more_comes(capfd: pytest.CaptureFixture[str]) -> None:
    notes = GapNotes()
    notes.add(ConsumerGap("t", 0, 0, 5, "expired"))
    notes.add(ConsumerGap("t", 1, 0, 1, "truncated"))
    notes.add(ConsumerGap("t", 0, 5, 6, "compacted"))
    notes.print_gap(0)
    assert capfd.readouterr().err == "seglog: warning: offsets 0 to 4 of t-0 hold no record (expired)\n"
    notes.finish()
    assert capfd.readouterr().err.splitlines() == [
        "seglog: warning: offsets 0 to 0 of t-1 hold no record (truncated)",
        "seglog: note: 1 offset without a record (compacted)",
    ]


def test_an_offset_that_is_gone_is_an_error_unless_told_where_to_go_on(typed: Typed, broker: FakeBroker) -> None:
    fill(broker)
    log = broker.logs["t"][0]
    del log.batches[0]
    log.batches.append(encode_batch([(0, None, b"kept", ())], base_offset=3))
    log.earliest, log.latest = 3, 6
    wanted = ("consume", "t", "--partition", "0", "--from", "0")
    assert typed(*wanted)[:2] == (4, "")
    assert typed(*wanted, "--on-out-of-range", "earliest") == (
        0,
        "kept\n",
        (
            "seglog: warning: offsets 0 to 2 of t-0 hold no record (expired)\n"
            "seglog: warning: offsets 4 to 5 of t-0 hold no record (missing)\n"
        ),
    )


# --- topics, offsets, ping --------------------------------------------------------------------------------------------


def test_topics_are_created_listed_described_and_deleted(typed: Typed, broker: FakeBroker) -> None:
    code, out, _ = typed(
        "topic", "create", "new", "--partitions", "3", "--config", "retention.ms=-1", "--config", "a.b=c=d"
    )
    assert (code, out) == (0, "new: 3 partitions\n")
    created = next(request for request in broker.requests if isinstance(request, CreateTopicRequest))
    assert created == CreateTopicRequest("new", 3, {"retention.ms": "-1", "a.b": "c=d"})
    code, _, error = typed("topic", "create", "new")
    assert (code, error) == (4, "seglog: new exists\n")
    code, _, error = typed("topic", "create", "new", "--partitions", "4", "--if-not-exists")
    assert (code, error) == (0, "seglog: warning: new exists with 3 partitions, not 4\n")
    assert [topic["name"] for topic in json.loads(typed("topic", "list", "--json")[1])] == ["new", "t"]
    assert typed("topic", "list")[1].splitlines()[1].split()[:2] == ["new", "3"]
    broker.config["new"] = {"retention.ms": ConfigEntry("-1", "topic", "seglog-topics.json")}
    assert "retention.ms  -1     topic seglog-topics.json" in typed("topic", "describe", "new")[1]
    assert json.loads(typed("--json", "topic", "describe", "new")[1])["config"]["retention.ms"]["value"] == "-1"
    assert typed("topic", "delete", "new")[:2] == (0, "new: deleted\n")
    code, _, error = typed("topic", "delete", "new")
    assert (code, error) == (4, "seglog: there is no topic new; did you mean t?\n")


def test_an_altered_topic_is_shown_with_the_settings_of_its_own(typed: Typed, broker: FakeBroker) -> None:
    settings: list[dict[str, ConfigValue]] = [{}, {"retention.ms": "-1", "segment.bytes": "1000"}]
    broker.script = lambda request, _: (
        AlterTopicReply("t", 1, settings.pop(0), []) if isinstance(request, AlterTopicRequest) else None
    )
    assert typed("topic", "alter", "t", "--reset", "retention.ms") == (
        0,
        "t: 1 partition, no settings of its own\n",
        "",
    )
    _, out, _ = typed("topic", "alter", "t", "--config", "retention.ms=-1", "--config", "segment.bytes=1000")
    assert out == "t: 1 partition, retention.ms=-1, segment.bytes=1000\n"
    sent = [request for request in broker.requests if isinstance(request, AlterTopicRequest)]
    assert [(request.config, request.reset) for request in sent] == [
        ({}, ["retention.ms"]),
        ({"retention.ms": "-1", "segment.bytes": "1000"}, []),
    ]
    assert typed("topic", "alter", "t")[0] == 2


def test_deleting_asks_in_a_terminal_and_only_there(typed: Typed, broker: FakeBroker) -> None:
    delete = ("topic", "delete", "t")
    for answer in ("", "\n", "n\n", "t\n"):
        code, _, asked = typed(*delete, answer=answer)
        assert (code, "t" in broker.logs) == (1, True)
        assert "Delete topic t (2 partitions, " in asked
        assert "seglog: t is not deleted" in asked
    assert typed(*delete, answer="YES\n")[0] == 0
    assert "t" not in broker.logs
    for unasked in (("--yes",), ()):
        broker.logs["t"] = []
        assert typed(*delete, *unasked, answer="" if unasked else None) == (0, "t: deleted\n", "")


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (["@2000"], {0: 2, 1: 2}),
        (["@1000", "0:end"], {0: None, 1: 1}),
        (["0:2", "1:1970-01-01T00:00:01.5"], {0: 2, 1: 2}),
        (["end"], {0: 3, 1: 2}),
    ],
)
def test_a_topic_is_truncated_before_offsets_and_before_times(
    typed: Typed, broker: FakeBroker, before: list[str], expected: dict[int, int | None]
) -> None:
    fill(broker)
    asked: dict[int, int | None] = {}

    def truncated(request: Request, _: object) -> Answer | None:
        if not isinstance(request, TruncateRequest):
            return None
        asked.update({item.partition: item.offset for item in request.partitions})
        return TruncateReply([TruncateResult(item.topic, item.partition, 7) for item in request.partitions])

    broker.script = truncated
    options = [option for place in before for option in ("--before", place)]
    code, out, _ = typed("topic", "truncate", "t", *options, "--json")
    assert (code, asked) == (0, expected)
    assert json.loads(out) == [{"topic": "t", "partition": partition, "earliest": 7} for partition in sorted(expected)]


def test_durations_and_sizes(typed: Typed, broker: FakeBroker) -> None:
    """Durations and sizes are shown as they are read and compared as what they mean."""
    broker.config["t"] = {
        "retention.ms": ConfigEntry("604800000", "topic"),
        "segment.bytes": ConfigEntry("1000", "topic"),
    }
    shown = typed("topic", "describe", "t")[1].splitlines()
    assert [" ".join(line.split()) for line in shown[-2:]] == [
        "retention.ms 604800000 (7 days) topic",
        "segment.bytes 1000 topic",
    ]
    again = ("topic", "create", "t", "--if-not-exists", "--config", "segment.bytes=1kB")
    assert "exists with" not in typed(*again, "--config", "retention.ms=7d")[2]
    assert "exists with retention.ms=604800000, not 8d" in typed(*again, "--config", "retention.ms=8d")[2]


def test_offsets_as_a_table_and_for_machines(typed: Typed, broker: FakeBroker) -> None:
    fill(broker)
    _, out, _ = typed("offsets", "t", "--json")
    assert json.loads(out) == [
        {"topic": "t", "partition": p, "earliest": 0, "latest": n, "durable": n, "leader_epoch": 0}
        for p, n in ((0, 3), (1, 2))
    ]
    _, out, _ = typed("offsets", "t", "--json", "--at", "@2000")
    assert [(one["offset"], one["timestamp"]) for one in json.loads(out)] == [(2, 2000), (None, None)]
    _, out, _ = typed("offsets", "t", "--at", "@2000", "--partition", "0")
    assert out.splitlines()[1].split() == ["t", "0", "0", "3", "3", "0", "2", "1970-01-01T00:00:02.000Z"]


def pinged(broker: FakeBroker, answer: Answer) -> None:
    broker.script = lambda request, _: answer if isinstance(request, HelloRequest) else None


def test_ping_says_who_answers_for_how_long_and_where_its_data_is(typed: Typed, broker: FakeBroker) -> None:
    assert typed("ping")[0] == 0
    directory = {"log_dir": "/var/lib/seglog/data", "cluster_id": "5L6g3nShT-eMCtK--X86sw"}
    pinged(broker, HelloReply("seglog", "fake/1", {}, {}, uptime_ms=61_000, partitions=1, **directory))  # type: ignore[arg-type] # text only
    code, out, _ = typed("ping")
    assert (code, out.splitlines()) == (
        0,
        [
            f"fake/1 at {broker.address}, up 1 min 1 s, 1 partition, no problems",
            "data in /var/lib/seglog/data, cluster id 5L6g3nShT-eMCtK--X86sw",
        ],
    )
    told = json.loads(typed("ping", "--json")[1])
    assert (told["ok"], told["serving"], told["log_dir"]) == (True, 1, "/var/lib/seglog/data")


def test_what_would_be_lost_without_the_disk_is_told(typed: Typed, broker: FakeBroker) -> None:
    assert typed("backup", "status")[:2] == (
        1,
        "there is no continuous backup (seglog.backup.to is empty), or it is not for this account to see\n",
    )
    backup = BackupStatus("s3://b/seglog", 2100, 12, 3400, 10_000, 5000, 4000, "20261130T120000Z", 1_796_040_000_000)
    pinged(broker, HelloReply("seglog", "fake/1", {}, {}, backup=backup))
    loss = "12 records, 3.4 kB, of the last 2.1 s would be lost without the broker's disk"
    assert typed("ping")[1].splitlines()[-1] == f"backup to s3://b/seglog: {loss}"
    code, out, _ = typed("backup", "status")
    assert (code, out.splitlines()) == (
        0,
        [
            "backup to s3://b/seglog",
            loss,
            "published: 20261130T120000Z, the state of 2026-11-30T12:00:00.000Z",
            "sent to the place since the broker started: 5 kB, for 4 kB appended",
        ],
    )
    assert json.loads(typed("backup", "status", "--json")[1]) == backup.to_wire()
    new = BackupStatus("/mnt/b", 20_000, 1, 70, 10_000, 0, 0, reason="it is away")
    pinged(broker, HelloReply("seglog", "fake/1", {}, {}, backup=new))
    code, out, _ = typed("backup", "status")
    assert (code, out.splitlines()[-1]) == (1, "held up: it is away")
    assert out.splitlines()[1].startswith("nothing is published yet, 20 s after the start: without the broker's disk")


@pytest.mark.parametrize(
    ("partitions", "offline", "recovering", "problems", "codes"),
    [
        pytest.param(0, 0, 0, [], (0, 0, 0), id="no partition at all"),
        pytest.param(3, 0, 0, ["t-0 is read-only"], (1, 0, 0), id="one read-only"),
        pytest.param(3, 1, 0, ["t-0 is offline: damaged"], (1, 0, 0), id="one offline"),
        pytest.param(3, 0, 2, [], (0, 0, 0), id="one served, the others recovering"),
        pytest.param(3, 0, 3, [], (0, 1, 0), id="all recovering"),
        pytest.param(3, 1, 2, ["t-0 is offline: damaged"], (1, 1, 0), id="none served"),
    ],
)
def test_ping_exits_with_what_was_asked_well_ready_or_alive(
    typed: Typed,
    broker: FakeBroker,
    partitions: int,
    offline: int,
    recovering: int,
    problems: list[str],
    codes: tuple[int, int, int],
) -> None:
    recovery = {"partitions": recovering, "read_bytes": 0, "bytes": 10} if recovering else None
    facts: dict[str, Any] = {"problems": problems, "recovery": recovery, "offline": offline}
    pinged(broker, HelloReply("seglog", "fake/1", {}, {}, partitions=partitions, **facts))
    for arguments, expected in zip(((), ("--ready",), ("--live",)), codes, strict=True):
        code, out, _ = typed("ping", *arguments)
        assert code == expected, arguments
        assert [line for line in out.splitlines() if line.startswith("problem: ")] == [
            f"problem: {p}" for p in problems
        ]
        code, out, _ = typed("ping", *arguments, "--json")
        assert (code, json.loads(out)["ok"], json.loads(out)["problems"]) == (expected, not expected, problems)


def test_a_read_only_broker_is_ready_with_problems(typed: Typed, broker: FakeBroker) -> None:
    """A broker that can only be read until there is room is ready and has problems."""
    problem = "t-0 is read-only until there is room on the disk, which its recovery needs (No space left on device)"
    hello = HelloReply("seglog", "fake/1", {}, {}, partitions=2, problems=[problem], read_only_until_room=2)
    pinged(broker, hello)
    code, out, _ = typed("ping")
    assert (code, typed("ping", "--ready")[0]) == (1, 0)
    assert out.splitlines()[0].endswith("2 partitions, 2 of them read-only until there is room on the disk, 1 problem")
    assert json.loads(typed("ping", "--json")[1])["read_only_until_room"] == 2


def test_a_broker_that_still_fetches_segments_is_well(typed: Typed, broker: FakeBroker) -> None:
    pinged(
        broker,
        HelloReply("seglog", "fake/1", {}, {}, partitions=2, log_dir="/d", awaited={"segments": 3, "bytes": 4_200_000}),
    )
    code, out, _ = typed("ping")
    assert code == typed("ping", "--ready")[0] == 0
    assert out.splitlines()[0].endswith("2 partitions, 3 segments (4 MB) still in a backup, no problems")


def test_a_broker_that_lets_nobody_in_is_alive_and_one_that_is_away_is_not(typed: Typed, broker: FakeBroker) -> None:
    pinged(broker, BrokerStoppingError("the broker is stopping; connect again"))
    code, out, _ = typed("--connect-timeout", "0.5", "ping", "--live")
    assert (code, out) == (0, f"a broker answers at {broker.address}: the broker is stopping; connect again\n")
    code, out, _ = typed("--connect-timeout", "0.5", "ping", "--live", "--json")
    assert (code, json.loads(out)["refusal"]["code"]) == (0, "BROKER_STOPPING")
    for option in ("--ready", "--json"):
        assert typed("--connect-timeout", "0.5", "ping", option)[0] == 3
    broker.stop()
    for options in ((), ("--ready",), ("--live",)):
        assert typed("--connect-timeout", "0.5", "ping", *options)[0] == 3


# --- explain segments -------------------------------------------------------------------------------------------------


def explained(partition: int, *pages: list[int]) -> Script:
    """A partition of ``t`` whose segments begin at these offsets, page by page."""
    segments = {
        base: ExplainedSegment(base, base + 10, 500, "closed", "it is young") for page in pages for base in page
    }

    def answer(request: Request, _: memoryview) -> Answer | None:
        if not isinstance(request, ExplainSegmentsRequest):
            return None
        if request.partition != partition:
            return PartitionOfflineError("partition 0 of topic t is offline: EIO", topic="t", partition=0, reason="EIO")
        last = [None, *(page[-1] for page in pages)].index(request.after)
        reply = ExplainSegmentsReply(
            *("t", partition, 1_700_000_000_000, 0, 30, 3, 1500, 0, 0, 300_000, 1_700_000_120_000),
            more=last < len(pages) - 1,
        )
        page = pages[last] if last < len(pages) else []
        return reply, encode_value([segments[base].to_wire() for base in page])

    return answer


def test_segments_are_explained_and_drawn_all_pages_of_them(
    typed: Typed, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without colours in a pipe."""
    broker.script = explained(1, [0, 10], [20])
    monkeypatch.setenv("COLUMNS", "100")
    code, out, error = typed("explain", "segments", "t", "1")
    assert (code, error) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "t-1: offsets 0 to 29, 3 segments, 1,500 bytes, next offset 30"
    assert [line.split()[0] for line in lines if "closed" in line] == ["0", "10", "20"]
    assert "    why      it is young" in lines
    code, out, error = typed("explain", "segments", "t", "1", "--picture")
    assert (code, error) == (0, "")
    assert out.startswith("t-1: offsets 0 to 29, 3 segments, 1,500 bytes\n")
    assert [line.split()[0] for line in out.splitlines() if "closed" in line] == ["0", "10", "20"]
    assert "\x1b" not in out


def test_explained_segments_are_one_json_document(typed: Typed, broker: FakeBroker) -> None:
    """Explained segments are one JSON document and an offline partition costs only itself."""
    broker.script = explained(1, [0, 10], [20])
    code, out, error = typed("explain", "segments", "t", "--json")
    assert code == 4
    assert error == "seglog: partition 0 of topic t is offline: EIO\n"
    (document,) = json.loads(out)
    assert (document["topic"], document["partition"], document["check_interval_ms"]) == ("t", 1, 300_000)
    assert [segment["base_offset"] for segment in document["segments"]] == [0, 10, 20]
    code, out, error = typed("explain", "segments", "t", "0")
    assert (code, out) == (4, "")
    assert "offline" in error


def test_a_picture_is_written_into_a_file_or_to_standard_output(
    typed: Typed, broker: FakeBroker, tmp_path: Path
) -> None:
    broker.script = explained(1, [0, 10], [20])
    code, out, error = typed("explain", "segments", "t", "1", "--svg", str(tmp_path / "t.svg"))
    assert (code, out, error) == (0, "", "")
    written = (tmp_path / "t.svg").read_text("utf-8")
    assert written.startswith("<svg ")
    assert typed("explain", "segments", "t", "1", "--svg", "-") == (0, written, "")
    code, _, error = typed("explain", "segments", "t", "1", "--svg", str(tmp_path / "nowhere" / "t.svg"))
    assert (code, error) == (1, f"seglog: {tmp_path}/nowhere/t.svg: No such file or directory\n")


# --- What can go wrong ------------------------------------------------------------------------------------------------


@each_case(
    "command, sentence",
    [
        *(
            (command, "")
            for command in (
                "",
                "nonsense",
                "topic",
                "topic create",
                "topic create t --partitions -1",
                "topic create t --config novalue",
                "topic truncate t --before 5000",
                "topic truncate t --before 0:soon",
                "consume t --from soon",
                "consume t --from -1y",
                "consume t --coun 1",
                "consume t --count x",
                "offsets t --at 7",
                "produce t --key-field k",
                "produce t --compression brotli",
                "produce t --linger-ms -1",
                "produce t --linger-ms 5KiB",
                "produce t --batch-bytes 0.3K",
                "load produce --duration 10M",
                "load produce --rate 10s",
                "explain segments t 1 --svg a.svg --watch",
                "--server 'a b' ping",
                "--server host:0 ping",
            )
        ),
        *(
            (f"{command} \udcff", "\\udcff' is not text in UTF-8")
            for command in ("topic describe", "topic create", "offsets", "consume", "produce")
        ),
        ("topic create new --config retention.ms=\udcff", "\\udcff' is not text in UTF-8"),
        *(
            (f"{command} {digits}", f"at most {2**63 - 1}")
            for command in ("topic create new --partitions", "consume t --partition", "explain seek t")
            for digits in ("99999999999999999999", "9" * 5_000)
        ),
        *(
            (
                f"spark archive --topic t --out o --target-file-mb={wrong}",
                f"--target-file-mb: must be a whole number, 1 or more, not '{wrong}'\n",
            )
            for wrong in ("abc", "0", "-1", "1.5")
        ),
        *(
            (f"explain segments t 1 --json {option}", f"seglog: {option.split()[0]} and --json exclude each other\n")
            for option in ("--picture", "--svg a.svg", "--watch")
        ),
        ("offsets t --position nowhere.json", "must be PARTITION:OFFSET, for example 0:1200, the name of a file with"),
        ("offsets t --position 0:1 --position 0:2", "partition 0 has a position already"),
        ("offsets t --position 0:1 --at -1h", "--at and --position exclude each other"),
        ("consume t --group ''", "seglog: --group: must not be empty"),
        ("consume t --group a --partition 0", "seglog: --partition does not go with --group, which shares out"),
        ("consume t --group a --on-out-of-range latest", "--on-out-of-range does not go with --group"),
        (f"consume t --partition {2**31}", "seglog: --partition: must be a whole number, at most 2147483647"),
        *((f"group {command}", ": must not be empty") for command in ("describe ''", "delete a ''")),
        ("group reset '' --to latest --all-topics", ": must not be empty"),
        ("group reset g --to soon --all-topics", "'soon' is neither an offset nor a time"),
        (f"group reset g --to +{'9' * 30} --all-topics", f"+{'9' * 30} is too large a number"),
        ("group reset g --all-topics", "--to is missing"),
        ("group reset g --to latest", "--topic or --all-topics is required"),
        ("group reset g --to latest --topic a --all-topics", "exclude each other"),
        *((f"group reset g --to 1 --topic {t}", "must be TOPIC or TOPIC:PARTITION,...") for t in ("a:", "a:1,x")),
        (f"group reset g --to latest --topic a:{'9' * 30}", "must be a whole number, at most"),
        ("load produce --rate -1", "--rate: must be"),
        ("load produce --duration 0", "--duration: must be"),
        ("load produce --record-size 0", "--record-size: must be"),
        ("load consume --rate 5", "--rate"),
        ("load", "seglog load"),
        ("load produce --server a:b", "'b' is not a port"),
    ],
)
def test_what_cannot_be_meant_is_exit_code_2_with_a_sentence(typed: Typed, command: str, sentence: str) -> None:
    code, out, error = typed(*shlex.split(command))
    assert (code, out) == (2, "")
    assert sentence in error
    assert error
    assert "Traceback" not in error


def test_durations_and_sizes_are_numbers_of_what_the_option_says_or_have_their_unit() -> None:
    def typed(*arguments: str) -> Options:
        return parse(arguments)

    assert typed("--connect-timeout", "500ms", "ping").connect_timeout == 0.5
    assert typed("--connect-timeout", "1.5", "ping").connect_timeout == 1.5
    produce = typed("produce", "t", "--linger-ms", "0.1s", "--batch-bytes", "64KiB")
    assert (produce.linger_ms, produce.batch_bytes) == (100, 65536)
    load = typed("load", "produce", "--duration", "2m", "--record-size", "1kB", "--batch-bytes", "5000")
    assert (load.duration, load.record_size, load.batch_bytes) == (120, 1000, 5000)
    archive = ("spark", "archive", "--topic", "t", "--out", "x", "--trigger", "5m", "--target-file-mb")
    assert (typed(*archive, "1GiB").target_file_mb, typed(*archive, "64").target_file_mb) == (1024, 64)
    assert typed(*archive, "64").trigger == 300
    with pytest.raises(click.BadParameter, match=r"must be a whole number of MiB, not '1\.5MB'"):
        typed(*archive, "1.5MB")


def test_a_missing_file_is_one_sentence(typed: Typed, tmp_path: Path) -> None:
    code, _, error = typed("produce", "t", str(tmp_path / "absent"))
    assert (code, error) == (1, f"seglog: {tmp_path / 'absent'}: No such file or directory\n")


def test_an_interrupt_is_exit_code_130_and_says_what_was_not_acknowledged(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_self: object, _line: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("seglog.cli.lines.JsonLines.parse", interrupted)
    code, _, error = typed("produce", "t", "--format", "json", stdin=b"1\n")
    assert (code, error) == (130, "seglog: interrupted\nseglog: 0 records read, 0 acknowledged\n")


def test_the_version_is_shown(typed: Typed) -> None:
    assert typed("--version")[:2] == (0, f"seglog {__version__}\n")
