"""Settings that clients make at run time: checked, kept, in force, refused where nothing would read them, and told."""

import dataclasses
import errno
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.api import describe_broker
from seglog_broker.api.broker import Broker
from seglog_broker.api.configs import GROUP_BYTES_MAX, GROUPS_MAX
from seglog_broker.api.describe_broker import WARNINGS_MAX, BrokerDescriber
from seglog_broker.config import load_config
from seglog_broker.config.broker_config import AUTHORIZERS, BROKER_KEYS, TOPIC_DEFAULT_NAMES
from seglog_broker.config.dynamic_config import DYNAMIC_KEYS, FILE_ONLY, VALUE_CHARACTERS_MAX, DynamicConfig
from seglog_broker.config.kafka_configs import Alteration, ConfigSource, Operation, ResourceType
from seglog_broker.config.keys import Change, Effect
from seglog_broker.config.topic_config import TOPIC_KEYS
from seglog_broker.config.values import HIDDEN, Secret
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.security.authority import Authority
from seglog_broker.security.principals import ANONYMOUS
from seglog_broker.storage.directory.dynamic_configs import encode_dynamic_configs
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol import errors
from seglog_protocol.access import Rules
from seglog_protocol.frames import HEADER_BYTES_MAX, encode_value
from seglog_protocol.messages import CreateTopicRequest, DescribeBrokerReply
from seglog_protocol.steps import ITEMS_A_STEP
from tests.logs import ManualClock
from tests.unit.broker.brokers import open_broker


def opened(fs: ForgetfulFileSystem, *flags: str) -> Broker:
    return open_broker(fs, "num.partitions=2", *flags, clock=ManualClock(1))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = opened(ForgetfulFileSystem())
    yield broker
    broker.close()


def disk(broker: Broker) -> ForgetfulFileSystem:
    assert isinstance(broker.fs, ForgetfulFileSystem)
    return broker.fs


async def alter(
    broker: Broker, name: str, *changes: tuple[str, str | None], kind: ResourceType = ResourceType.BROKER, **how: bool
) -> None:
    """Set keys, or delete those without a value."""
    alterations = [
        Alteration(key, Operation.DELETE if value is None else Operation.SET, value) for key, value in changes
    ]
    await broker.configs.alter(kind, name, alterations, **how)


alter_group = partial(alter, kind=ResourceType.GROUP)


def shown(broker: Broker, name: str, *keys: str) -> dict[str, tuple[str | None, ConfigSource]]:
    entries = broker.configs.describe(ResourceType.BROKER, name, keys)
    return {entry.name: (entry.value, entry.source) for entry in entries}


def test_the_keys_are_those_that_are_read_wherever_they_are_used() -> None:
    reloaded = {key.name for key in BROKER_KEYS.values() if key.change is Change.RELOAD}
    reloaded -= {  # no client names files and administrators
        name for name in reloaded if name.startswith(FILE_ONLY) and BROKER_KEYS[name].effect is Effect.NOW
    }
    defaults = {key.synonyms[0].name for key in TOPIC_KEYS.values() if key.synonyms}
    assert DYNAMIC_KEYS.keys() == (reloaded - (TOPIC_DEFAULT_NAMES.keys() - defaults)) | defaults


async def test_one_broker_is_stronger_than_all_and_both_than_flags(broker: Broker) -> None:
    key = "num.partitions"
    assert shown(broker, "1", key) == {key: ("2", ConfigSource.STATIC_BROKER_CONFIG)}
    await alter(broker, "", (key, "3"))
    assert shown(broker, "1", key) == {key: ("3", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)}
    await alter(broker, "+01", (key, "4"))
    assert shown(broker, "1", key) == {key: ("4", ConfigSource.DYNAMIC_BROKER_CONFIG)}
    assert broker.config.num_partitions == 4
    assert str(broker.config.origin(key)) == "dynamic broker num.partitions"
    await alter(broker, "1", (key, None))
    assert broker.config.num_partitions == 3
    await alter(broker, "", (key, None))
    assert broker.config.num_partitions == 2
    assert broker.config == broker.live_config.static


async def test_settings_are_there_after_a_power_cut_and_reach_topics(broker: Broker) -> None:
    await broker.create_topic(CreateTopicRequest("t"))
    await alter(broker, "1", ("log.retention.ms", "1h"), ("log.cleanup.policy", "compact, delete"))
    found = opened(disk(broker).found_after(POWER_LOSS))
    for each in (broker, found):
        assert each.partitions["t", 0].log.config.retention_ms == 3_600_000
        assert each.partitions["t", 0].log.config.cleanup_policy == ("compact", "delete")
        [entry] = each.configs.describe(ResourceType.TOPIC, "t", ["retention.ms"])
        assert (entry.value, entry.source) == ("3600000", ConfigSource.DYNAMIC_BROKER_CONFIG)
    found.close()


async def test_settings_of_another_number_are_kept_without_effect(broker: Broker) -> None:
    await alter(broker, "1", ("num.partitions", "5"))
    fs = disk(broker).found_after(POWER_LOSS)
    other = opened(fs, "node.id=7")
    assert other.config.num_partitions == 2
    await alter(other, "7", ("num.partitions", "6"))
    assert other.close() == []
    again = opened(fs)
    assert again.config.num_partitions == 5
    again.close()


async def test_an_alteration_that_replaces_drops_what_it_does_not_name(broker: Broker) -> None:
    await alter(broker, "1", ("num.partitions", "5"), ("log.retention.ms", "-1"))
    await alter(broker, "1", ("num.partitions", "6"), replaces=True)
    assert broker.live_config.dynamic == DynamicConfig({"1": {"num.partitions": "6"}})
    await alter(broker, "1", replaces=True)
    assert broker.live_config.dynamic == DynamicConfig()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([("log.dir", "/x")], r"^Cannot update these configs dynamically: \[log.dir\]: log.dir needs a restart"),
        ([("num.partitions", "3"), ("seglog.handles.max", "9")], "seglog.handles.max needs a restart"),
        ([("log.retention.hours", "3")], "set under its other name, log.retention.ms"),
        ([("broker.rack", "r")], "has no effect here"),
        ([("advertised.listeners", "PLAINTEXT://h:1")], r"^Cannot update these .*in force after SIGHUP"),
        ([("ssl.keystore.location", "/x")], r"set in the configuration file, and in force after SIGHUP"),
        ([("listener.name.plaintext.ssl.client.auth", "none")], r"configuration file, and in force after SIGHUP"),
        ([("listener.name.plaintext.sasl.enabled.mechanisms", "PLAIN")], "mechanisms needs a restart"),
        ([("retention.ms", "3")], "retention.ms is a key of topics"),
        ([("xyzzy", "3")], "xyzzy is not a configuration key$"),
        ([("num.partitions", "0")], r"num.partitions = 0 .*must be a whole number from 1"),
        ([("num.partitions", "3"), ("num.partitions", "4")], "duplicate"),
        ([("log.cleaner.min.compaction.lag.ms", "9"), ("log.cleaner.max.compaction.lag.ms", "8")], "must be at most"),
    ],
)
async def test_what_is_not_possible_changes_nothing_and_says_why(
    broker: Broker, changes: Sequence[tuple[str, str]], why: str
) -> None:
    before = broker.config
    disk(broker).operations.clear()
    for validate_only in (True, False):
        with pytest.raises(errors.InvalidRequestError, match=why):
            await alter(broker, "1", *changes, validate_only=validate_only)
    await alter(broker, "1", ("num.partitions", "3"), validate_only=True)
    assert broker.config is before
    assert disk(broker).operations == []


async def test_as_in_kafka_replicas_in_sync_are_set_for_all_brokers_and_never_for_one(broker: Broker) -> None:
    key = "min.insync.replicas"
    assert shown(broker, "") == {key: ("1", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)}
    with pytest.raises(errors.InvalidConfigError, match="not for one broker"):
        await alter(broker, "1", (key, "2"))
    with capture_logs() as logged:
        await alter(broker, "", (key, "2"))
    assert [entry["event"] for entry in logged] == ["configuration_changed", "config_warning"]
    assert "no effect here" in logged[1]["reason"]
    assert shown(broker, "1", key) == {key: ("2", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)}
    await alter(broker, "", (key, None))
    assert shown(broker, "") == {key: ("1", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)}


async def test_a_key_without_effect_is_kept_with_a_warning_as_at_a_start(broker: Broker) -> None:
    key = "num.io.threads"
    with capture_logs() as logged:
        await alter(broker, "1", (key, "9"))
    assert [entry["event"] for entry in logged] == ["configuration_changed", "config_warning"]
    assert "has no effect here: one event loop serves" in logged[1]["reason"]
    assert shown(broker, "1", key) == {key: ("9", ConfigSource.DYNAMIC_BROKER_CONFIG)}


async def test_an_address_that_an_earlier_version_has_kept_counts_until_it_is_deleted(broker: Broker) -> None:
    kept = DynamicConfig({"1": {"advertised.listeners": "PLAINTEXT://h:1"}})
    await broker.configs.alter_dynamic(lambda _: kept, validate_only=False)
    found = opened(disk(broker).found_after(POWER_LOSS))
    assert list(found.config.advertised_listeners) == ["PLAINTEXT://h:1"]
    await alter(found, "1", ("advertised.listeners", None))
    assert not found.config.advertised_listeners
    assert found.close() == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_settings_that_cannot_be_kept_are_not_in_force(broker: Broker, number: int) -> None:
    await alter(broker, "1", ("num.partitions", "5"))
    disk(broker).inject(Fault("pwritev", "seglog-configs.json.tmp", error=number))
    with pytest.raises(errors.StorageError, match="the settings could not be kept") as raised:
        await alter(broker, "1", ("num.partitions", "6"))
    assert isinstance(raised.value, errors.DiskFullError) == (number == errno.ENOSPC)
    assert broker.config.num_partitions == 5
    await alter(broker, "1", ("num.partitions", "7"))
    assert broker.config.num_partitions == 7


async def test_alterations_at_the_same_time_lose_nothing(broker: Broker) -> None:
    changes = {"num.partitions": "3", "fetch.max.bytes": "2000", "group.max.size": "9", "log.retention.ms": "77"}
    async with trio.open_nursery() as nursery:
        for change in changes.items():
            nursery.start_soon(alter, broker, "1", change)
    assert broker.live_config.dynamic.of_broker("1") == changes
    found = opened(disk(broker).found_after(POWER_LOSS))
    assert found.live_config.dynamic == broker.live_config.dynamic
    found.close()


async def test_another_configuration_of_the_file_keeps_the_settings(broker: Broker) -> None:
    await alter(broker, "1", ("num.partitions", "5"))
    broker.reconfigure(dataclasses.replace(broker.live_config.static, num_partitions=9, fetch_max_bytes=4000))
    assert (broker.config.num_partitions, broker.config.fetch_max_bytes) == (5, 4000)
    await alter(broker, "1", ("num.partitions", None))
    assert (broker.config.num_partitions, broker.config.fetch_max_bytes) == (9, 4000)


async def test_the_value_of_a_setting_has_a_bounded_length(broker: Broker) -> None:
    with pytest.raises(errors.InvalidRequestError, match="more than 8192 characters"):
        await alter(broker, "1", ("cordoned.log.dirs", "d" * (VALUE_CHARACTERS_MAX + 1)))
    await alter(broker, "1", ("cordoned.log.dirs", "d" * VALUE_CHARACTERS_MAX))


async def test_very_many_logs_get_a_new_default_in_steps(broker: Broker) -> None:
    await broker.create_topic(CreateTopicRequest("t", 1))
    logs, log = broker.directory.logs, broker.directory.logs["t", 0]
    more = {("t", number): log for number in range(1, 2 * ITEMS_A_STEP + 1)}  # to make so many would take long
    logs |= more
    steps = broker.reconfigured(broker.live_config.static, DynamicConfig({"": {"log.retention.ms": "1"}}))
    assert len(list(steps)) == 2
    assert log.config.retention_ms == 1
    for key in more:
        del logs[key]


# --- Groups -----------------------------------------------------------------------------------------------------------

SESSION: Final = "consumer.session.timeout.ms"
HEARTBEAT: Final = "consumer.heartbeat.interval.ms"


def shown_group(broker: Broker, name: str, key: str) -> list[tuple[str, str | None, ConfigSource]]:
    """The synonyms of a key, the first of which is the value in force."""
    [entry] = broker.configs.describe(ResourceType.GROUP, name, [key])
    assert (entry.value, entry.source) == entry.synonyms[0][1:]
    return [(name, value, source) for name, value, source in entry.synonyms]


async def test_the_setting_of_a_group_is_stronger_than_those_of_brokers(broker: Broker) -> None:
    await alter(broker, "", (f"group.{SESSION}", "50000"))
    await alter_group(broker, "g", (SESSION, "55s"))
    of_brokers = [
        (f"group.{SESSION}", "50000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (f"group.{SESSION}", "45000", ConfigSource.DEFAULT_CONFIG),
    ]
    assert shown_group(broker, "g", SESSION) == [(SESSION, "55000", ConfigSource.GROUP_CONFIG), *of_brokers]
    assert shown_group(broker, "other", SESSION) == of_brokers
    found = opened(disk(broker).found_after(POWER_LOSS))
    assert shown_group(found, "g", SESSION) == shown_group(broker, "g", SESSION)
    found.close()
    await alter_group(broker, "g", (HEARTBEAT, "6000"), replaces=True)
    assert shown_group(broker, "g", SESSION) == of_brokers
    await alter_group(broker, "g", (HEARTBEAT, None))
    assert broker.live_config.dynamic.groups == {}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([(SESSION, "44999")], "greater than or equal to group.consumer.min.session.timeout.ms, which is 45000"),
        ([(SESSION, "60001")], "less than or equal to group.consumer.max.session.timeout.ms, which is 60000"),
        ([(HEARTBEAT, "4999")], "greater than or equal to group.consumer.min.heartbeat.interval.ms, which is 5000"),
        ([(HEARTBEAT, "15001")], "less than or equal to group.consumer.max.heartbeat.interval.ms, which is 15000"),
        ([(HEARTBEAT, "x")], "must be a whole number"),
        ([(SESSION, "50000"), (HEARTBEAT, "0")], "must be a whole number from 1"),
        ([("share.delivery.count.limit", "11")], "less than or equal to group.share.max.delivery.count.limit"),
        ([("share.auto.offset.reset", "none")], "must be earliest, latest, or by_duration"),
        ([("share.isolation.level", "READ_COMMITTED")], "must be one of read_committed, read_uncommitted"),
        ([("errors.deadletterqueue.topic.name", "__x")], "must not start with '__'"),
        ([("consumer.assignment.interval.ms", "1000")], "would have no effect"),
        ([("streams.num.standby.replicas", "1")], "would have no effect: there are no streams groups"),
        ([("nope", "1")], "Unknown group config name: nope"),
    ],
)
async def test_what_a_group_may_not_have_is_refused(
    broker: Broker, changes: Sequence[tuple[str, str]], why: str
) -> None:
    for validate_only in (True, False):
        with pytest.raises(errors.InvalidConfigError, match=why):
            await alter_group(broker, "g", *changes, validate_only=validate_only)
    assert broker.live_config.dynamic == DynamicConfig()


async def test_the_session_of_a_group_is_longer_than_the_time_between_its_heartbeats() -> None:
    broker = opened(ForgetfulFileSystem(), "group.consumer.min.session.timeout.ms=1000")
    with pytest.raises(errors.InvalidConfigError, match=r"must be greater than consumer\.heartbeat"):
        await alter_group(broker, "g", (SESSION, "5000"))
    await alter_group(broker, "g", (SESSION, "5001"))
    broker.close()


async def test_so_many_groups_have_settings_of_their_own() -> None:
    fs = ForgetfulFileSystem()
    groups = {f"g{number:04}": {SESSION: "50000"} for number in range(GROUPS_MAX)}
    fs.load({"/data/seglog-configs.json": encode_dynamic_configs(DynamicConfig(groups=groups))})
    broker = opened(fs)
    with pytest.raises(errors.PolicyViolationError, match="1,000 groups have settings"):
        await alter_group(broker, "one more", (SESSION, "50000"))
    await alter_group(broker, "g0007", (SESSION, "51000"))
    await alter_group(broker, "g0008", (SESSION, None))
    await alter_group(broker, "one more", (SESSION, "50000"))
    assert len(broker.live_config.dynamic.groups) == GROUPS_MAX
    broker.close()


async def test_the_name_of_a_group_with_settings_has_a_bounded_length(broker: Broker) -> None:
    await alter_group(broker, "g" * GROUP_BYTES_MAX, (SESSION, "50000"))
    with pytest.raises(errors.InvalidRequestError, match="at most 255 bytes"):
        await alter_group(broker, "ä" * (GROUP_BYTES_MAX // 2 + 1), (SESSION, "50000"))


async def test_the_switch_of_rules_is_for_those_above_them(broker: Broker) -> None:
    switch = [Alteration("authorizer.class.name", Operation.SET, AUTHORIZERS[0])]
    with pytest.raises(errors.InvalidRequestError, match=r"super\.users is empty"):
        await broker.configs.alter(ResourceType.BROKER, "", switch)
    broker.reconfigure(dataclasses.replace(broker.live_config.static, super_users=("User:admin",)))
    await broker.configs.alter(ResourceType.BROKER, "", switch)
    assert broker.authority.is_enforced
    away = [Alteration("authorizer.class.name", Operation.DELETE, None)]
    for alterations, replaces in ((away, False), ([], True)):
        with pytest.raises(errors.AuthorizationError, match=r"super\.users alone"):
            await broker.configs.alter(ResourceType.BROKER, "", alterations, replaces=replaces, administers=False)
    await broker.configs.alter(ResourceType.BROKER, "", away)
    assert not broker.authority.is_enforced


# --- What a broker tells about its configuration, listeners and process; no secret is among it ------------------------


async def described(*flags: str) -> DescribeBrokerReply:
    config, _ = load_config(None, "", {}, ["log.dir=/data", *flags])
    live, authority = LiveConfig(config, DynamicConfig()), Authority(config, Rules())
    return await BrokerDescriber(live, ManualClock(), InlineOffload(), authority).describe(ANONYMOUS)


async def test_no_secret_is_told() -> None:
    """Every key of a secret, set, is described without its value."""
    secrets = [name for name, key in BROKER_KEYS.items() if isinstance(key.kind, Secret)]
    assert "ssl.key.password" in secrets
    reply = await described(*(f"{name}=planted-{name}" for name in secrets))
    assert all(reply.config[name].value == HIDDEN for name in secrets)
    assert b"planted-" not in bytes(encode_value(reply.to_wire()))


async def test_what_is_left_open_is_a_warning() -> None:
    reply = await described("seglog.listen=0.0.0.0:9192", "seglog.open.to.everyone=true")
    assert any("open to everyone" in warning for warning in reply.warnings)


@pytest.mark.parametrize(
    ("key", "item", "separator"),
    [("super.users", "User:{:030}", ";"), ("advertised.listeners", "PLAINTEXT://h{}:9092", ",")],
)
async def test_long_values_leave_room_in_the_header(key: str, item: str, separator: str) -> None:
    reply = await described(f"{key}={separator.join(map(item.format, range(20_000)))}")
    assert len(reply.config[key].value) == describe_broker.VALUE_CHARACTERS_MAX + len("...")
    entries = len(reply.config) + WARNINGS_MAX
    assert (
        len(encode_value(reply.to_wire())) < entries * (describe_broker.VALUE_CHARACTERS_MAX + 300) < HEADER_BYTES_MAX
    )
