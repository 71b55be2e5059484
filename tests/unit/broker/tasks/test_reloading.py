"""Reloading the configuration: what takes effect, what waits for a restart, and that a reload is all or nothing."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.config import BrokerConfig, ConfigSources, load_config
from seglog_broker.config.broker_config import BROKER_KEYS
from seglog_broker.config.dynamic_config import differences, taken_over
from seglog_broker.config.keys import Effect
from seglog_broker.config.sources import CONFIG_BYTES_MAX
from seglog_broker.reloading import reload
from seglog_broker.runtime.live_config import LiveConfig
from seglog_protocol.errors import InvalidConfigError
from tests.unit.broker.tasks.living_broker import NO_BALLAST, LoopClock, TimedDisk, append, living, with_topic

FLAG = "num.recovery.threads.per.data.dir=3"


def changed(broker: Broker, **values: Any) -> None:
    """Put other values in force, as a reload does."""
    broker.reconfigure(dataclasses.replace(broker.config, **values))


async def reloaded(broker: Broker, file: Path, text: str) -> list[Any]:
    await trio.Path(file).write_text(text, encoding="utf-8")
    flags = ["log.dir=/data", "log.initial.task.delay.ms=0", NO_BALLAST, FLAG]  # as ``living`` has them
    with capture_logs() as logged:
        await reload(broker, ConfigSources(str(file), {}, flags))
    return list(logged)


# --- What differs -----------------------------------------------------------------------------------------------------


def test_a_change_is_reported(tmp_path: Path) -> None:
    """A change is reported under the strongest name with both values and the new origin."""
    old, _ = ConfigSources(flags=["log.retention.hours=24"]).load()
    new, _ = ConfigSources(flags=["log.retention.minutes=60", "seglog.handles.max=7"]).load()
    found = {(d.key, d.old, d.new, str(d.origin), d.is_dynamic) for d in differences(old, new)}
    assert found == {
        ("log.retention.ms", "86400000", "3600000", "flag --set log.retention.minutes", True),
        ("seglog.handles.max", "2048", "7", "flag --set seglog.handles.max", False),
    }
    assert differences(new, new) == []


def test_of_every_key_the_new_value_is_taken_or_the_old_one_kept_as_it_says() -> None:
    old, new = BrokerConfig(), BrokerConfig()
    checked_together = {
        *("log.cleaner.threads", "log.cleaner.dedupe.buffer.size"),
        *("listeners", "advertised.listeners", "listener.security.protocol.map"),
    }
    for key in BROKER_KEYS.values():
        other = dataclasses.replace(old, **{key.attribute: ("other", key.attribute)})  # type: ignore[arg-type]
        if key.name in checked_together or key.name.startswith("group.share."):
            continue  # numbers that are held against each other
        merged = taken_over(old, other)
        assert (getattr(merged, key.attribute) == getattr(other, key.attribute)) is key.is_dynamic, key.name
    assert taken_over(old, new) == old


def test_keys_that_only_a_start_reads_are_none_that_a_reload_takes() -> None:
    """They are used only at the start: a new value would be shown without being in force."""
    at_start = {"log.dir", "seglog.listen", "seglog.handles.max", "seglog.connections.max", "log.initial.task.delay.ms"}
    static = {key.name for key in BROKER_KEYS.values() if not key.is_dynamic}
    assert at_start <= static
    # It says which listeners are not opened, so the broker's own would be taken for controllers'.
    assert {name for name in static if BROKER_KEYS[name].effect is not Effect.NOW} == {"controller.listener.names"}


def test_values_that_contradict_unchanged_ones_are_refused() -> None:
    old, _ = ConfigSources(flags=["log.cleaner.threads=100", "log.cleaner.dedupe.buffer.size=1000000000"]).load()
    new, _ = ConfigSources(flags=["log.cleaner.dedupe.buffer.size=2000000"]).load()
    with pytest.raises(InvalidConfigError, match=r"log\.cleaner\.threads"):
        taken_over(old, new)


# --- A living broker --------------------------------------------------------------------------------------------------


async def test_defaults_reach_topics_that_exist_and_their_own_values_stay(
    clock: LoopClock, fs: TimedDisk, tmp_path: Path
) -> None:
    async with living(fs, clock, FLAG, tasks=()) as broker:
        await with_topic(broker, "plain", partitions=2)
        await with_topic(broker, "own", retention_ms=5000)
        logged = await reloaded(
            broker, tmp_path / "file", '"log.retention.ms" = 60000\n"producer.id.expiration.ms" = 5\n'
        )
        assert [entry["event"] for entry in logged] == ["configuration_changed"] * 2 + ["configuration_reloaded"]
        plain = [broker.partitions["plain", number].log for number in range(2)]
        assert [log.config.retention_ms for log in plain] == [60_000] * 2
        assert [log.producers.expiration_ms for log in plain] == [5, 5]
        assert broker.partitions["own", 0].log.config.retention_ms == 5000
        await with_topic(broker, "later")
        assert broker.partitions["later", 0].log.config.retention_ms == 60_000


@pytest.mark.parametrize(
    "text",
    [
        '"num.partitions" = 7\nthis is no TOML',
        '"num.partitions" = 7\n"log.retention.ms" = "long"\n',
        '"num.partitions" = 7\n"log.cleaner.min.compaction.lag.ms" = 9\n"log.cleaner.max.compaction.lag.ms" = 8\n',
        '"num.partitions" = 7\n"unknown.key" = 8\n',
    ],
)
async def test_with_a_mistake_anywhere_nothing_changes_and_the_place_is_logged(
    text: str, clock: LoopClock, fs: TimedDisk, tmp_path: Path
) -> None:
    async with living(fs, clock, FLAG, tasks=()) as broker:
        before = broker.config
        [entry] = await reloaded(broker, tmp_path / "file", text)
        assert (entry["event"], entry["log_level"]) == ("configuration_not_reloaded", "error")
        assert entry["file"] == str(tmp_path / "file")
        assert entry["reason"]
        assert broker.config is before
        [(_, problem)] = broker.problems
        assert problem == (
            f"the configuration was not reloaded, so that the one before is still in force: {entry['reason']}"
        )
        await reloaded(broker, tmp_path / "file", '"num.partitions" = 7\n')
        assert list(broker.problems) == [], "it is mended"


@pytest.mark.parametrize("kind", ["pipe", "device", "too large"])
async def test_what_is_no_configuration_file_any_more_is_not_waited_for(
    kind: str, clock: LoopClock, fs: TimedDisk, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"#" * (CONFIG_BYTES_MAX + 1))
    async with living(fs, clock) as broker:
        before = broker.config
        with capture_logs() as logged:
            await reload(broker, ConfigSources(str(path)))
        assert broker.config is before
    assert [entry["event"] for entry in logged] == ["configuration_not_reloaded"]
    assert ("larger than" if kind == "too large" else "not a regular file") in logged[0]["reason"]


async def test_a_key_that_left_the_file_has_its_default_again(clock: LoopClock, fs: TimedDisk, tmp_path: Path) -> None:
    async with living(fs, clock, FLAG, tasks=()) as broker:
        await reloaded(broker, tmp_path / "file", '"num.partitions" = 7\n')
        assert broker.config.num_partitions == 7
        [change, _] = await reloaded(broker, tmp_path / "file", "")
        assert [change[name] for name in ("key", "old", "new", "origin")] == ["num.partitions", "7", "1", "default"]
        assert broker.config.num_partitions == 1


async def test_the_marks_of_a_full_disk_change_at_once(clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock, tasks=()) as broker:
        space = broker.directory.space
        assert not space.is_full
        changed(broker, seglog_disk_free_hard_bytes=space.free + 1, seglog_disk_free_soft_bytes=space.free + 1)
        assert space.is_full
        changed(broker, seglog_disk_free_hard_bytes=0, seglog_disk_free_soft_bytes=0)
        assert not space.is_full


# --- Tasks that sleep -------------------------------------------------------------------------------------------------


async def test_a_shorter_interval_brings_the_next_check_of_retention_forward(clock: LoopClock, fs: TimedDisk) -> None:
    flags = ("log.retention.check.interval.ms=86400000", "log.initial.task.delay.ms=1000")
    async with living(fs, clock, *flags, tasks=["retention"]) as broker:
        await with_topic(broker, segment_bytes=1024, retention_ms=10_000)
        append(broker, 8)
        await trio.sleep(3600)
        assert broker.metrics.segments_expired == 0
        changed(broker, log_retention_check_interval_ms=60_000)
        assert broker.retention_schedule.ms_to_next[0] <= 60_000
        await trio.sleep(61)
        assert broker.metrics.segments_expired > 0


async def test_the_scrub_is_switched_on_and_off_and_has_its_interval_changed(clock: LoopClock, fs: TimedDisk) -> None:
    flags = ("seglog.scrub.bytes.per.second=0", "seglog.scrub.interval.ms=3600000")
    async with living(fs, clock, *flags, tasks=["scrubs"]) as broker:
        await with_topic(broker, segment_bytes=1024)
        append(broker, 14)
        await trio.sleep(10_000)
        assert broker.metrics.scrub_passes == 0
        changed(broker, seglog_scrub_bytes_per_second=1 << 20)
        await trio.sleep(1)
        assert (broker.metrics.scrub_passes, broker.metrics.scrubbed_segments) == (1, 3)
        changed(broker, seglog_scrub_interval_ms=60_000)
        await trio.sleep(61)
        assert broker.metrics.scrub_passes == 2
        changed(broker, seglog_scrub_bytes_per_second=0)
        await trio.sleep(10_000)
        assert broker.metrics.scrubbed_segments == 6


async def test_a_longer_sleep_is_slept_on_and_a_shorter_one_ends() -> None:
    config, _ = load_config(None, "", {}, [])
    changes = LiveConfig(config)
    seconds = 100.0
    ended: list[float] = []

    async def sleep() -> None:
        await changes.sleep(lambda: seconds, since=0)
        ended.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleep)
        await trio.sleep(10)
        seconds = 200
        changes.replace(config)
        await trio.sleep(140)
        assert ended == []
        seconds = 120
        changes.replace(config)
    assert ended == [150]
