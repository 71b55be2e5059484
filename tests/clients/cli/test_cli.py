"""The command line, whole: what it prints, what it says when it cannot, and its exit codes."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seglog.cli import main
from seglog.cli.consume import GapNotes
from seglog.gaps import ConsumerGap
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import (
    CorruptRecordError,
    InvalidConfigError,
    PartitionOfflineError,
    PartitionReadOnlyError,
)
from seglog_protocol.frames import encode_value
from seglog_protocol.messages import (
    AppendReply,
    AppendRequest,
    AppendResult,
    ConfigEntry,
    CreateTopicRequest,
    ExplainedSegment,
    ExplainSegmentsReply,
    ExplainSegmentsRequest,
    FetchReply,
    FetchRequest,
    FetchResult,
    Gap,
    HelloReply,
    HelloRequest,
    Request,
)
from seglog_protocol.record_batch import CRC_POSITION, parse_header
from tests.clients.fake_broker import Answer, FakeBroker, Script, fake_broker
from tests.processes import clean_environment, seglog_command, signalled_at_import

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker(topics={"t": 2}) as running:
        yield running


@pytest.fixture
def run(broker: FakeBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the fake broker: exit code, stdout, stderr."""
    monkeypatch.setenv("SEGLOG_SERVER", broker.address)

    def run_command(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = main(arguments)
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        sys.stdout.flush()
        return code, *capfd.readouterr()

    return run_command


def fill(broker: FakeBroker) -> None:
    broker.logs["t"][0].append(encode_batch([(n * 1000, b"k%d" % n, b"v%d" % n, ()) for n in range(3)]))
    broker.logs["t"][1].append(encode_batch([(n * 1000, None, b"w%d" % n, ()) for n in range(2)]))


# --- produce ----------------------------------------------------------------------------------------------------------


def test_a_json_lines_value_is_its_own_bytes(run: Run, broker: FakeBroker) -> None:
    lines = [b'{"ts": 1000,  "path":"a"}', '{"path":"ä","ts":2000 }'.encode(), b'{"path":"\\u00e4","ts":3000}']
    arguments = ("--format", "json", "--key-field", "path", "--timestamp-field", "ts", "--partition", "0")
    code, _, error = run("produce", "t", *arguments, stdin=b"\n".join(lines) + b"\n\n")
    assert code == 0
    assert "3 records to t (2 partitions)" in error
    assert "ack disk" in error
    records = broker.logs["t"][0].records()
    assert [record.value for record in records] == lines
    assert [record.key for record in records] == [b"a", "ä".encode(), "ä".encode()]
    assert [record.timestamp for record in records] == [1000, 2000, 3000]


def test_a_bad_line_stops_the_run_with_its_number_and_everything_before_it_is_sent(
    run: Run, broker: FakeBroker
) -> None:
    code, _, error = run("produce", "t", "--format", "json", "--partition", "0", stdin=b"1\n2\nnope\n4\n")
    assert code == 1
    assert "line 3 is bad: not JSON" in error
    assert "--skip-bad" in error
    assert broker.values() == [b"1", b"2"]


def test_bad_lines_can_be_counted_instead(run: Run, broker: FakeBroker) -> None:
    code, out, _ = run(
        "produce", "t", "--format", "json", "--skip-bad", "--partition", "0", "--json", stdin=b"1\nx\n3\ny"
    )
    assert code == 0
    summary = json.loads(out)
    assert (summary["records"], summary["bad_lines"], summary["ack"]) == (2, 2, "disk")
    assert broker.values() == [b"1", b"3"]


def test_text_lines_from_a_file_with_headers_and_compression(run: Run, broker: FakeBroker, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\r\n\ntwo\xff")
    code, _, error = run(
        "produce", "t", str(file), "--partition", "1", "--header", "a=1", "--header", "b=x=y", "--compression", "zstd"
    )
    assert (code, "%|" in error) == (0, False), "no progress bar outside a terminal"
    records = broker.logs["t"][1].records()
    assert [record.value for record in records] == [b"one", b"", b"two\xff"]
    assert records[0].headers == (("a", b"1"), ("b", b"x=y"))


def test_raw_input_is_one_record(run: Run, broker: FakeBroker) -> None:
    assert run("produce", "t", "--format", "raw", "--partition", "0", stdin=b"a\nb\n")[0] == 0
    assert broker.values() == [b"a\nb\n"]


def test_records_older_than_the_topic_keeps_are_warned_about(run: Run, broker: FakeBroker) -> None:
    broker.config["t"] = {"retention.ms": ConfigEntry("604800000", "default")}
    code, _, error = run(
        "produce", "t", "--format", "json", "--timestamp-field", "ts", stdin=b'{"ts":1}\n{"ts":99999999999999}'
    )
    assert code == 0
    assert "1 record expired on arrival" in error
    broker.config["t"] = {"retention.ms": ConfigEntry("-1", "topic")}
    assert "expired" not in run("produce", "t", "--format", "json", "--timestamp-field", "ts", stdin=b'{"ts":1}')[2]


def test_records_the_broker_refuses_are_exit_code_4(run: Run, broker: FakeBroker) -> None:
    no = PartitionReadOnlyError("t-0 is read-only after a failed fsync")
    broker.script = lambda request, _: (
        AppendReply([AppendResult("t", p.partition, error=no) for p in request.partitions])
        if isinstance(request, AppendRequest)
        else None
    )
    code, _, error = run("produce", "t", stdin=b"x\n")
    assert code == 4
    assert "not acknowledged: 1 record to t; the last cause: t-0 is read-only" in error


# --- consume ----------------------------------------------------------------------------------------------------------


def test_values_a_line_each(run: Run, broker: FakeBroker) -> None:
    fill(broker)
    code, out, error = run("consume", "t")
    assert (code, sorted(out.split()), error) == (0, ["v0", "v1", "v2", "w0", "w1"], "")


def test_json_objects_from_a_moment(run: Run, broker: FakeBroker) -> None:
    fill(broker)
    code, out, _ = run("consume", "t", "--from", "@1000", "--partition", "0", "--format", "json", "--count", "1")
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {"topic": "t", "partition": 0, "offset": 1, "timestamp": 1000, "key": "k1", "value": "v1", "headers": []}
    ]


def test_count_is_over_all_and_until_for_each_partition(run: Run, broker: FakeBroker) -> None:
    fill(broker)
    assert len(run("consume", "t", "--count", "4")[1].split()) == 4
    assert run("consume", "t", "--count", "0")[1] == ""
    assert sorted(run("consume", "t", "--until", "@1000")[1].split()) == ["v0", "w0"]
    assert run("consume", "t", "--from", "latest")[1] == ""


def test_text_with_offsets_times_and_keys(run: Run, broker: FakeBroker) -> None:
    fill(broker)
    _, out, _ = run("consume", "t", "--partition", "0", "--offsets", "--keys", "--from", "2")
    assert out == "0:2\t1970-01-01T00:00:02.000Z\tk2\tv2\n"


def test_following_shows_each_record_at_once_and_ends_at_count(run: Run, broker: FakeBroker) -> None:
    fill(broker)
    assert run("consume", "t", "--follow", "--from", "earliest", "--count", "5")[0] == 0


def test_damage_is_one_sentence_and_a_failure_after_what_could_be_read(run: Run, broker: FakeBroker) -> None:
    fill(broker)
    error = CorruptRecordError("offsets 0 to 2 of t-0 cannot be read", start_offset=0, next_offset=3)
    broker.script = lambda request, _: (
        FetchReply([FetchResult("t", p.partition, error=error) for p in request.partitions])
        if isinstance(request, FetchRequest)
        else None
    )
    code, _, said = run("consume", "t", "--partition", "0")
    assert (code, said) == (
        1,
        "seglog: offsets 0 to 2 of t-0 cannot be read\nseglog: --skip-damaged reads on behind it\n",
    )


def test_damage_can_be_left_behind_and_every_other_record_is_printed(run: Run, broker: FakeBroker) -> None:
    for _ in range(3):
        fill(broker)
    log = broker.logs["t"][0]
    _, whole, _ = run("consume", "t", "--offsets")
    header = parse_header(log.batches[1])
    damaged = bytearray(log.batches[1])
    damaged[CRC_POSITION] ^= 1
    log.batches[1] = bytes(damaged)
    lost = [f"0:{offset}\t" for offset in range(header.base_offset, header.next_offset)]
    code, out, said = run("consume", "t", "--offsets", "--skip-damaged")
    assert code == 0
    assert sorted(out.splitlines()) == sorted(line for line in whole.splitlines() if not line.startswith(tuple(lost)))
    assert lost
    assert said.startswith(f"seglog: warning: the batch of offsets {header.base_offset} to {header.last_offset} in t-0")
    assert said.endswith("; skipped\n")
    assert run("consume", "t", "--offsets")[0] == 1


def test_each_loss_is_one_line_on_stderr_and_what_was_compacted_one_total(run: Run, broker: FakeBroker) -> None:
    gaps = [Gap(0, 2, "damaged"), Gap(2, 3, "damaged"), Gap(10, 13, "missing")]
    batches = b"".join(encode_batch([(0, None, b"v%d" % base, ())], base_offset=base) for base in (5, 9, 14))
    broker.logs["t"][0].latest = 20
    broker.script = lambda request, _: (
        (FetchReply([FetchResult("t", 0, len(batches), latest=20, gaps=gaps, compacted_before=10)]), batches)
        if isinstance(request, FetchRequest) and request.partitions[0].offset == 0
        else None
    )
    code, out, error = run("consume", "t", "--partition", "0")
    assert (code, out) == (0, "v5\nv9\nv14\n")
    assert error.splitlines() == [
        "seglog: warning: offsets 0 to 2 of t-0 hold no record (damaged)",
        "seglog: warning: offsets 10 to 13 of t-0 hold no record (missing)",
        "seglog: warning: offsets 15 to 19 of t-0 hold no record (missing)",
        "seglog: note: 5 offsets without a record (compacted)",
    ]


def test_a_loss_is_told_once_when_its_end_is_known_or_nothing_more_comes(capfd: pytest.CaptureFixture[str]) -> None:
    notes = GapNotes()
    notes.met(ConsumerGap("t", 0, 0, 5, "expired"))
    notes.met(ConsumerGap("t", 1, 0, 1, "truncated"))
    notes.met(ConsumerGap("t", 0, 5, 6, "compacted"))
    notes.tell(0)
    assert capfd.readouterr().err == "seglog: warning: offsets 0 to 4 of t-0 hold no record (expired)\n"
    notes.finish()
    assert capfd.readouterr().err.splitlines() == [
        "seglog: warning: offsets 0 to 0 of t-1 hold no record (truncated)",
        "seglog: note: 1 offset without a record (compacted)",
    ]


def test_an_offset_that_is_gone_is_an_error_unless_told_where_to_go_on(run: Run, broker: FakeBroker) -> None:
    fill(broker)
    log = broker.logs["t"][0]
    del log.batches[0]
    log.batches.append(encode_batch([(0, None, b"kept", ())], base_offset=3))
    log.earliest, log.latest = 3, 4
    wanted = ("consume", "t", "--partition", "0", "--from", "0")
    assert run(*wanted)[:2] == (4, "")
    assert run(*wanted, "--on-out-of-range", "earliest") == (
        0,
        "kept\n",
        "seglog: warning: offsets 0 to 2 of t-0 hold no record (expired)\n",
    )


def test_whoever_has_read_enough_ends_it_quietly(broker: FakeBroker) -> None:
    broker.logs["t"][0].append(encode_batch([(0, None, b"x" * 1000, ())] * 1000))
    done = subprocess.run(
        f"{sys.executable} -m seglog.cli --server {broker.address} consume t | head -n 1; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "x" * 1000 + "\n0\n"
    assert done.stderr == ""


# --- topics, offsets, ping --------------------------------------------------------------------------------------------


def test_topics_are_created_listed_described_and_deleted(run: Run, broker: FakeBroker) -> None:
    code, out, _ = run(
        "topic", "create", "new", "--partitions", "3", "--config", "retention.ms=-1", "--config", "a.b=c=d"
    )
    assert (code, out) == (0, "new: 3 partitions\n")
    created = next(request for request in broker.requests if isinstance(request, CreateTopicRequest))
    assert created == CreateTopicRequest("new", 3, {"retention.ms": "-1", "a.b": "c=d"})
    code, _, error = run("topic", "create", "new")
    assert (code, error) == (4, "seglog: new exists\n")
    code, _, error = run("topic", "create", "new", "--partitions", "4", "--if-not-exists")
    assert (code, error) == (0, "seglog: warning: new exists with 3 partitions, not 4\n")
    assert [topic["name"] for topic in json.loads(run("topic", "list", "--json")[1])] == ["new", "t"]
    assert run("topic", "list")[1].splitlines()[1].split()[:2] == ["new", "3"]
    broker.config["new"] = {"retention.ms": ConfigEntry("-1", "topic", "seglog-topics.json")}
    assert "retention.ms  -1     topic seglog-topics.json" in run("topic", "describe", "new")[1]
    assert json.loads(run("--json", "topic", "describe", "new")[1])["config"]["retention.ms"]["value"] == "-1"
    assert run("topic", "delete", "new")[:2] == (0, "new: deleted\n")
    code, _, error = run("topic", "delete", "new")
    assert (code, error) == (4, "seglog: there is no topic new; did you mean t?\n")


def test_a_configuration_the_broker_refuses_is_its_own_sentence(run: Run, broker: FakeBroker) -> None:
    no = InvalidConfigError("no key retention.m; did you mean retention.ms?", key="retention.m")
    broker.script = lambda request, _: no if isinstance(request, CreateTopicRequest) else None
    code, _, error = run("topic", "create", "x", "--config", "retention.m=1")
    assert (code, error) == (4, "seglog: no key retention.m; did you mean retention.ms?\n")


def test_offsets_as_a_table_and_for_machines(run: Run, broker: FakeBroker) -> None:
    fill(broker)
    _, out, _ = run("offsets", "t", "--json")
    assert json.loads(out) == [
        {"topic": "t", "partition": p, "earliest": 0, "latest": n, "durable": n, "leader_epoch": 0}
        for p, n in ((0, 3), (1, 2))
    ]
    _, out, _ = run("offsets", "t", "--json", "--at", "@2000")
    assert [(one["offset"], one["timestamp"]) for one in json.loads(out)] == [(2, 2000), (None, None)]
    _, out, _ = run("offsets", "t", "--at", "@2000", "--partition", "0")
    assert out.splitlines()[1].split() == ["t", "0", "0", "3", "3", "0", "2", "1970-01-01T00:00:02.000Z"]


def test_ping_says_who_answers_for_how_long_and_what_troubles_it(run: Run, broker: FakeBroker) -> None:
    code, out, _ = run("ping")
    assert (code, out) == (0, f"fake/1 at {broker.address}, up 1 min 1 s, 1 partition, no problems\n")
    broker.script = lambda request, _: (
        HelloReply("seglog", "fake/1", {}, {}, problems=["t-0 is read-only"])
        if isinstance(request, HelloRequest)
        else None
    )
    code, out, _ = run("ping")
    assert (code, "t-0 is read-only" in out) == (0, True)
    assert json.loads(run("ping", "--json")[1])["problems"] == ["t-0 is read-only"]


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


def test_segments_are_explained_as_a_table_all_pages_of_it(
    run: Run, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.script = explained(1, [0, 10], [20])
    monkeypatch.setenv("COLUMNS", "100")
    code, out, error = run("explain", "segments", "t", "1")
    assert (code, error) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "t-1: offsets 0 to 29, 3 segments, 1,500 bytes, next offset 30"
    assert [line.split()[0] for line in lines if "closed" in line] == ["0", "10", "20"]
    assert "    why      it is young" in lines


def test_explained_segments_are_one_json_document_and_an_offline_partition_costs_only_itself(
    run: Run, broker: FakeBroker
) -> None:
    broker.script = explained(1, [0, 10], [20])
    code, out, error = run("explain", "segments", "t", "--json")
    assert code == 4
    assert error == "seglog: partition 0 of topic t is offline: EIO\n"
    (document,) = json.loads(out)
    assert (document["topic"], document["partition"], document["check_interval_ms"]) == ("t", 1, 300_000)
    assert [segment["base_offset"] for segment in document["segments"]] == [0, 10, 20]
    code, out, error = run("explain", "segments", "t", "0")
    assert (code, out) == (4, "")
    assert "offline" in error


# --- What can go wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["topic"],
        ["topic", "create"],
        ["topic", "create", "t", "--partitions", "-1"],
        ["topic", "create", "t", "--config", "novalue"],
        ["consume", "t", "--from", "soon"],
        ["consume", "t", "--from", "-1y"],
        ["consume", "t", "--coun", "1"],
        ["consume", "t", "--count", "x"],
        ["offsets", "t", "--at", "7"],
        ["produce", "t", "--key-field", "k"],
        ["produce", "t", "--compression", "brotli"],
        ["produce", "t", "--linger-ms", "-1"],
        ["--server", "a b", "ping"],
        ["--server", "host:0", "ping"],
    ],
)
def test_what_cannot_be_meant_is_exit_code_2_with_a_sentence(run: Run, arguments: list[str]) -> None:
    code, out, error = run(*arguments)
    assert (code, out) == (2, "")
    assert error
    assert "Traceback" not in error


def test_a_number_that_is_none_is_refused_by_the_name_of_its_option(run: Run) -> None:
    for wrong in ("abc", "0", "-1", "1.5"):
        code, _, error = run("spark", "archive", "--topic", "t", "--out", "o", f"--target-file-mb={wrong}")
        assert code == 2
        assert f"argument --target-file-mb: '{wrong}' is no whole number from 1 on" in error


def test_a_relative_moment_needs_no_equals_sign(run: Run) -> None:
    assert run("consume", "t", "--from", "-1h", "--until", "+1h")[0] == 0


def test_nobody_there_is_exit_code_3(run: Run, broker: FakeBroker) -> None:
    broker.stop()
    code, _, error = run("ping", "--connect-timeout", "0")
    assert code == 3
    assert broker.address in error
    assert "is seglogd running there?" in error
    assert error.count("\n") == 1


def test_the_server_option_wins_over_the_environment_and_may_stand_anywhere(
    run: Run, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGLOG_SERVER", "127.0.0.1:1")
    assert run("--server", broker.address, "ping")[0] == 0
    assert run("ping", "--server", broker.address)[0] == 0
    assert run("ping", "--connect-timeout", "0")[0] == 3


def test_a_missing_file_is_one_sentence(run: Run, tmp_path: Path) -> None:
    code, _, error = run("produce", "t", str(tmp_path / "absent"))
    assert (code, error) == (1, f"seglog: {tmp_path / 'absent'}: No such file or directory\n")


def test_an_interrupt_is_exit_code_130_and_says_what_was_not_acknowledged(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_self: object, _line: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("seglog.cli.json_lines.JsonLines.parse", interrupted)
    code, _, error = run("produce", "t", "--format", "json", stdin=b"1\n")
    assert (code, error) == (130, "seglog: interrupted\nseglog: 0 records read and handed over until then\n")


@pytest.mark.parametrize("module", ["seglog.cli.arguments", "seglog_protocol.errors", "seglog.cli.topics", "msgpack"])
def test_an_interrupt_while_it_is_still_being_imported_is_exit_code_130_too(module: str, tmp_path: Path) -> None:
    done = subprocess.run(
        seglog_command("localhost:1", "topic", "list"),
        env=signalled_at_import(tmp_path, module, signal.SIGINT),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "sent\nseglog: interrupted\n")


@pytest.mark.parametrize(
    ("module", "name"), [("seglog", "seglog"), ("seglog.cli", "seglog"), ("seglog_broker", "seglogd")]
)
def test_a_module_that_python_runs_is_the_command_and_calls_itself_so(module: str, name: str) -> None:
    for option, code in (("--help", 0), ("--frobnicate", 2)):
        done = subprocess.run(
            [sys.executable, "-m", module, option],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code
        assert (done.stderr if code else done.stdout).startswith(f"usage: {name} [")


def test_the_version_is_shown(run: Run) -> None:
    assert run("--version")[:2] == (0, "seglog 0.1.0\n")
