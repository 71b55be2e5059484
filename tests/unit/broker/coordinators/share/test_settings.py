"""The settings of a share group: its own, those of brokers, and what limits make of both."""

from seglog_broker.config.broker_config import BrokerConfig
from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.coordinators.share.settings import SettingsOfGroups, ShareSettings, share_settings
from seglog_broker.runtime.live_config import LiveConfig

DEFAULTS = ShareSettings(
    session_ms=45_000,
    heartbeat_ms=5_000,
    assignment_interval_ms=1_000,
    lock_ms=30_000,
    delivery_count_max=5,
    record_locks_max=2_000,
    auto_offset_reset="latest",
    reads_committed=False,
    may_renew=True,
    dead_letter_topic="",
    copies_dead_letters=False,
    members_max=200,
    updates_per_snapshot=500,
)


def test_without_settings_those_of_brokers_and_kafkas_defaults_count() -> None:
    assert share_settings({}, BrokerConfig()) == DEFAULTS
    config = BrokerConfig(group_share_delivery_count_limit=7, group_share_heartbeat_interval_ms=6_000)
    assert share_settings({}, config) == DEFAULTS._replace(delivery_count_max=7, heartbeat_ms=6_000)


def test_settings_of_a_group_are_read() -> None:
    own = {
        "share.session.timeout.ms": "46000",
        "share.heartbeat.interval.ms": "7000",
        "share.assignment.interval.ms": "0",
        "share.record.lock.duration.ms": "20000",
        "share.delivery.count.limit": "2",
        "share.partition.max.record.locks": "300",
        "share.auto.offset.reset": "by_duration:PT1S",
        "share.isolation.level": "read_committed",
        "share.renew.acknowledge.enable": "false",
        "errors.deadletterqueue.topic.name": "dlq.x",
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    read = share_settings(own, BrokerConfig())
    assert read == ShareSettings(46_000, 7_000, 0, 20_000, 2, 300, 1_000, True, False, "dlq.x", True, 200, 500)


def test_limits_that_changed_since_cap_what_a_group_has() -> None:
    config = BrokerConfig(group_share_max_delivery_count_limit=6, group_share_min_record_lock_duration_ms=25_000)
    own = {"share.delivery.count.limit": "9", "share.record.lock.duration.ms": "20000"}
    capped = share_settings(own, config)
    assert (capped.delivery_count_max, capped.lock_ms) == (6, 25_000)


def test_settings_are_made_once_and_anew_after_a_change() -> None:
    in_force = LiveConfig(BrokerConfig())
    known = SettingsOfGroups(in_force)
    assert known.of("g") is known.of("h")
    in_force.replace(in_force.static, DynamicConfig(groups={"g": {"share.delivery.count.limit": "9"}}))
    assert (known.of("g").delivery_count_max, known.of("h").delivery_count_max) == (9, 5)
    assert known.of("g") is known.of("g")
    in_force.replace(BrokerConfig(group_share_delivery_count_limit=4))
    assert (known.of("g").delivery_count_max, known.of("h").delivery_count_max) == (9, 4)
