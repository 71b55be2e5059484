"""The settings of a share group: those of its own, and of brokers for what it does not set."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, Protocol

from seglog_broker.config.broker_config import BrokerConfig
from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.config.group_keys import GROUP_KEYS, group_value, offset_reset


class ShareSettings(NamedTuple):
    """The values in force for a share group, in Kafka's units."""

    session_ms: int
    heartbeat_ms: int
    assignment_interval_ms: int
    lock_ms: int
    delivery_count_max: int
    record_locks_max: int
    auto_offset_reset: Literal["earliest", "latest"] | int
    """A number: the first offset of records that are so many milliseconds old at most."""
    reads_committed: bool
    may_renew: bool
    dead_letter_topic: str
    """Empty: the group has none."""
    copies_dead_letters: bool
    """True if key and value of a record go with it."""
    members_max: int
    updates_per_snapshot: int


class InForce(Protocol):
    """A configuration that may be replaced: ``LiveConfig``."""

    current: BrokerConfig
    dynamic: DynamicConfig


_NAMES: Final = tuple(name for name in GROUP_KEYS if not name.startswith("consumer."))


def share_settings(own: Mapping[str, str], config: BrokerConfig) -> ShareSettings:
    """The settings in force for a share group with the settings ``own``."""
    values = {name: group_value(name, own, config) for name in _NAMES}
    return ShareSettings(
        session_ms=values["share.session.timeout.ms"],
        heartbeat_ms=values["share.heartbeat.interval.ms"],
        assignment_interval_ms=values["share.assignment.interval.ms"],
        lock_ms=values["share.record.lock.duration.ms"],
        delivery_count_max=values["share.delivery.count.limit"],
        record_locks_max=values["share.partition.max.record.locks"],
        auto_offset_reset=offset_reset(values["share.auto.offset.reset"]),
        reads_committed=values["share.isolation.level"] == "read_committed",
        may_renew=values["share.renew.acknowledge.enable"],
        dead_letter_topic=values["errors.deadletterqueue.topic.name"],
        copies_dead_letters=values["errors.deadletterqueue.copy.record.enable"],
        members_max=config.group_share_max_size,
        updates_per_snapshot=config.share_coordinator_snapshot_update_records_per_snapshot,
    )


class SettingsOfGroups:
    """The settings of all share groups, made once for as long as the configuration stays."""

    def __init__(self, config: InForce) -> None:
        self._config: Final = config
        self._known = config.current, config.dynamic
        self._made: Final[dict[str, ShareSettings]] = {}

    def of(self, group: str) -> ShareSettings:
        """The settings of a share group."""
        config, dynamic = self._config.current, self._config.dynamic
        if config is not self._known[0] or dynamic is not self._known[1]:
            self._known = config, dynamic
            self._made.clear()
        own = dynamic.groups.get(group)
        key = group if own else ""  # no group has an empty name
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = share_settings(own or {}, config)
        return made
