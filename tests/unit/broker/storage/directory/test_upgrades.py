"""The start in a directory of another version: what it changes is said before it is changed."""

import errno
import json

import pytest

from seglog_broker.config.topic_overrides import KEPT_FOR_EVER
from seglog_broker.storage.directory.identity import UNNAMED, OtherVersion, upgrade_lines
from seglog_broker.storage.io.small_files import seal
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_protocol.errors import LogDirectoryError
from seglog_protocol.version import VERSION
from tests.support import each_case
from tests.unit.broker.storage.directory.directories import opened
from tests.unit.broker.storage.steps import create_topic

_REGISTRY = "/data/seglog-topics.json"
_NAMED = f"seglog-topics.json names {VERSION} as the version that wrote it, which older versions ignore"


def started(fs: ForgetfulFileSystem) -> list[tuple[OtherVersion, dict[str, bytes]]]:
    """A start and a clean stop; what the start said, and all files as they were when it did."""
    said: list[tuple[OtherVersion, dict[str, bytes]]] = []
    directory = opened(fs, upgrading=lambda other: said.append((other, fs.snapshot())))
    assert directory.close() == []
    return said


def written_by(version: str | None, **more: dict[str, str]) -> ForgetfulFileSystem:
    """A directory with a topic and an internal one, as another version would have left it after a clean stop."""
    fs = ForgetfulFileSystem()
    directory = opened(fs)
    create_topic(directory, "orders", 1, {})
    create_topic(directory, "__consumer_offsets", 1, {"cleanup.policy": "compact"})
    create_topic(directory, "__share_group_state", 1, dict(KEPT_FOR_EVER))
    assert directory.close() == []
    files = fs.snapshot()
    registry = json.loads(files[_REGISTRY])
    del registry["crc"], registry["written_by"]
    registry |= {} if version is None else {"written_by": version}
    for topic in registry["topics"]:
        topic["config"] |= more.get(topic["name"], {})
    again = ForgetfulFileSystem()
    again.load({**files, _REGISTRY: seal(registry)})
    return again


@each_case(
    ("version", "told", "is_newer"),
    [(None, UNNAMED, False), ("0.0.9", "0.0.9", False), ("999.1", "999.1", True), ("x" * 99, "x" * 50, False)],
)
def test_a_start_says_which_other_version_wrote_the_directory_and_only_once(
    version: str | None, told: str, is_newer: bool
) -> None:
    fs = written_by(version)
    before = fs.snapshot()
    [(other, seen)] = started(fs)
    assert other == OtherVersion(told, is_newer, [_NAMED])
    assert {path: data for path, data in seen.items() if path != "/data/.lock"} == {
        path: data for path, data in before.items() if path != "/data/.lock"
    }, "nothing has been changed when it is said"
    assert started(fs) == []


def test_what_a_start_corrects_is_said_before_and_then_done() -> None:
    fs = written_by(None, __consumer_offsets={"cleanup.policy": "delete"})
    correction = "settings of __consumer_offsets are corrected: cleanup.policy=compact"
    assert upgrade_lines(fs, "/data")[1:] == ["The next start changes there:", f"  {_NAMED}", f"  {correction}"]
    [(other, _)] = started(fs)
    assert other.changes == [_NAMED, correction]
    assert upgrade_lines(fs, "/data") == [f"/data was last written by this version, {VERSION}."]


@each_case("harmful", [{"cleanup.policy": "compact"}, {"retention.ms": "1000"}, {"retention.bytes": "1000"}])
def test_what_share_groups_accepted_is_neither_compacted_nor_does_it_expire(harmful: dict[str, str]) -> None:
    """An earlier version has compacted it; Kafka lets its clients set the rest."""
    fs = written_by(None, __share_group_state=harmful)
    [(other, _)] = started(fs)
    [corrected] = [f"{key}={KEPT_FOR_EVER[key]}" for key in harmful]
    assert other.changes == [_NAMED, f"settings of __share_group_state are corrected: {corrected}"]


def test_a_directory_of_a_newer_version_is_told_from_one_of_an_older() -> None:
    first, *_ = upgrade_lines(written_by("999.0"), "/data")
    assert first == (
        f"/data was last written by seglog 999.0; this is {VERSION}. It is newer: what it keeps in files of its own is "
        "not used."
    )
    assert upgrade_lines(written_by("0.0.1"), "/data")[0].endswith(f"seglog 0.0.1; this is {VERSION}.")


def test_a_directory_of_a_format_that_is_not_known_and_one_that_is_new() -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/data/seglog-format": b"2\n"})
    with pytest.raises(LogDirectoryError, match="use the newer version that wrote it"):
        upgrade_lines(fs, "/data")
    assert upgrade_lines(ForgetfulFileSystem(), "/data") == []


def test_a_directory_of_kafkas_is_named_as_such() -> None:
    fs = ForgetfulFileSystem()
    fs.load({f"/data/{name}/partition.metadata": b"" for name in ("a-0", "a-1", "b-0", "__cluster_metadata-0")})
    first, _, change = upgrade_lines(fs, "/data")
    assert first == "/data was last written by Apache Kafka."
    assert change.startswith("  2 topics of Kafka's become seglog's")


def test_after_a_crash_at_any_moment_it_is_said_again_until_it_was_done() -> None:
    fs = written_by("0.0.1")
    after: list[ForgetfulFileSystem] = []
    fs.on_operation = lambda _: after.append(fs.found_after(POWER_LOSS))
    started(fs)
    assert len(after) > 5
    said = [upgrade_lines(each, "/data")[0] for each in after]
    assert sorted(said, key=lambda line: "0.0.1" not in line) == said, "first the old version, then this one"
    assert "0.0.1" in said[0]
    assert "0.0.1" not in said[-1]
    assert all(len(started(each)) == ("0.0.1" in line) for each, line in zip(after, said, strict=True))


def test_a_disk_without_room_for_the_registry_does_not_keep_the_start() -> None:
    fs = written_by("0.0.1", __consumer_offsets={"cleanup.policy": "delete"})
    fs.inject(Fault("pwritev", lambda path: "seglog-topics" in path, error=errno.ENOSPC, sticky=True))
    [(other, _)] = started(fs)
    directory = opened(fs)
    assert directory.registry.topics["__consumer_offsets"].config["cleanup.policy"] == "compact"
    assert directory.close() == []
    [first, _, *changes] = upgrade_lines(fs, "/data")
    assert "0.0.1" in first
    assert changes == [f"  {change}" for change in other.changes]
