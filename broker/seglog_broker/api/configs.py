"""Requests about configuration from Kafka's clients, and the settings made at run time, which they alter one by one.

Settings of topics and of groups can be altered, and of brokers those that are read wherever they are used. Other keys
of a broker need a restart; an alteration of them is refused with Kafka's error for a key that is read-only.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from seglog_broker.api.describe_configs import (
    ROOT_LOGGER,
    broker_number,
    check_topic_name,
    describe_all_brokers,
    describe_broker,
    describe_client_metrics,
    describe_group,
    describe_loggers,
    describe_topic,
    unknown_resource,
)
from seglog_broker.config import BrokerConfig, OriginKind, dynamic_config
from seglog_broker.config.group_keys import GROUP_KEYS, checked_group_settings
from seglog_broker.config.kafka_configs import Alteration, ConfigEntry, Operation, ResourceType, kafka_keys
from seglog_broker.config.keys import Key
from seglog_broker.config.topic_config import TOPIC_NAMES
from seglog_broker.config.values import Value, split_list
from seglog_broker.engine.topics import TopicService
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime.budget import Turns
from seglog_broker.storage.directory.dynamic_configs import encode_dynamic_configs
from seglog_broker.storage.io.filenames import DYNAMIC_CONFIGS_FILE
from seglog_broker.storage.io.filesystem import write_file_atomically
from seglog_protocol.errors import AuthorizationError, InvalidConfigError, InvalidRequestError, PolicyViolationError
from seglog_protocol.messages import ConfigValue
from seglog_protocol.quotas import ClientQuotas, Entity, entity_text
from seglog_protocol.steps import Steps

_NOT_KEPT: Final = "the settings could not be kept"


log = get_logger()

GROUPS_MAX: Final = 1_000
"""The most groups with settings of their own: a new setting writes the file of all."""

GROUP_BYTES_MAX: Final = 255
"""The most bytes in the name of such a group."""

LINE_COST: Final = 40.0
"""Microseconds for a line in the log."""

_OPERATIONS: Final = frozenset(Operation)


def check_alterations(alterations: Sequence[Alteration]) -> None:
    """Raise InvalidRequestError for what any resource refuses: a key twice, a null value, an unknown operation."""
    if len({alteration.name for alteration in alterations}) < len(alterations):
        raise InvalidRequestError("Error due to duplicate config keys")
    for name, operation, value in alterations:
        if operation not in _OPERATIONS:
            raise InvalidRequestError(f"Unknown operation {operation} for {name[:60]}")
        if operation != Operation.DELETE and value is None:
            raise InvalidRequestError(f"Null value not supported for : {name[:60]}")


def altered_settings(
    own: Mapping[str, str],
    alterations: Sequence[Alteration],
    keys: Mapping[str, Key],
    default_of: Callable[[Key], Value],
) -> dict[str, str]:
    """What the settings ``own`` of a resource become. The values that are set are not checked yet, and ``own`` is kept.

    ``keys`` are those of the resource, by every name. A list that is not set begins with its default. Deleting what is
    not set, or not known, changes nothing.

    Raises InvalidConfigError for APPEND and SUBTRACT where there is no list; see also ``check_alterations``.
    """
    wanted = dict(own)
    for name, operation, value in alterations:
        key = keys.get(name)
        stored = name if key is None or name not in key.aliases else key.name
        match operation:
            case Operation.SET:
                wanted[name] = value or ""
            case Operation.DELETE:
                wanted.pop(stored, None)
            case _:
                word = Operation(operation)
                if key is None or key.kind.type_name != "list":
                    raise InvalidConfigError(
                        f"Can't {word.name} to key {name[:60]} because its type is not LIST.", key=name
                    )
                current = own.get(stored)
                if current is None:
                    current = key.text(default_of(key))
                wanted[stored] = _with_words(key, current, value or "", word)
    return wanted


def _with_words(key: Key, current: str, value: str, operation: Operation) -> str:
    """The list ``current`` with the words of ``value``, or without them."""
    words, given = split_list(current) or [], split_list(value) or []
    if operation is Operation.SUBTRACT:
        removed = frozenset(given)
        return ",".join(word for word in words if word not in removed)
    if not given:
        raise InvalidConfigError(
            f"There is nothing to append to {key.name}: its values must not be empty.", key=key.name
        )
    return ",".join(dict.fromkeys([*words, *given]))


_SWITCH: Final = ("authorizer.class.name", "allow.everyone.if.no.acl.found")
"""The keys that say whether rules are in force."""


@dataclass(eq=False, repr=False)
class ConfigService(Service):
    """The configuration of topics, of this broker, of all brokers and of groups.

    ``reconfigured`` are the steps that put settings made at run time in force.
    """

    _topics: TopicService
    _reconfigured: Callable[[BrokerConfig, dynamic_config.DynamicConfig], Steps[None]]

    def describe(
        self, resource: int, name: str, names: Collection[str] | None = None, *, actual: Mapping[str, str] | None = None
    ) -> list[ConfigEntry]:
        """The configuration of one resource of a DescribeConfigs request.

        ``names`` are the keys that are asked for, None or empty for all; unknown ones are left out, as Kafka does.
        ``actual``: see ``describe_broker``.

        Raises UnknownTopicError, and InvalidTopicError and InvalidRequestError for what Kafka refuses: another broker,
        a name that cannot be.
        """
        config, wanted = self._config, frozenset(names or ())
        match resource:
            case ResourceType.TOPIC:
                check_topic_name(name)
                return describe_topic(self._table.topic(name).config, config, wanted)
            case ResourceType.BROKER:
                if not name:
                    return describe_all_brokers(config, wanted)
                broker_number(name, config.static.node_id)
                return describe_broker(config, wanted, actual=actual)
            case ResourceType.BROKER_LOGGER:
                if not name:
                    raise InvalidRequestError("Broker id must not be empty")
                broker_number(name, config.static.node_id)
                return describe_loggers(config.current, wanted)
            case ResourceType.CLIENT_METRICS:
                if not name:
                    raise InvalidRequestError("Client metrics subscription name must not be empty")
                return describe_client_metrics(wanted)
            case ResourceType.GROUP:
                if not name:
                    raise InvalidRequestError("Group name must not be empty")
                return describe_group(name, config, wanted)
        raise unknown_resource(resource)

    def describe_new(self, settings: Mapping[str, ConfigValue]) -> list[ConfigEntry]:
        """What ``describe`` would say of a topic with these settings. Raises InvalidConfigError."""
        own, _ = self._config.current.validate_topic_config(settings)
        return describe_topic(own, self._config)

    async def alter(
        self,
        resource: int,
        name: str,
        alterations: Sequence[Alteration],
        *,
        replaces: bool = False,
        validate_only: bool = False,
        administers: bool = True,
    ) -> None:
        """One resource of an IncrementalAlterConfigs request, or, with ``replaces``, of an AlterConfigs request.

        The latter resets what is not named. All alterations are made or, with an error, none: InvalidConfigError,
        InvalidRequestError, InvalidTopicError, UnknownTopicError, StorageError. With ``validate_only`` none is made.
        ``administers``: who asks administers whatever rules say, which the switch of rules needs (AuthorizationError).
        """
        check_alterations(alterations)
        match resource:
            case ResourceType.TOPIC:
                await self._alter_topic(name, alterations, replaces=replaces, validate_only=validate_only)
            case ResourceType.BROKER:
                self._check_switch(name, alterations, replaces=replaces, administers=administers)
                await self._alter_broker(name, alterations, replaces=replaces, validate_only=validate_only)
            case ResourceType.BROKER_LOGGER if not replaces:
                self._refuse_logger(name, alterations)
            case ResourceType.CLIENT_METRICS:
                if not name:
                    raise InvalidRequestError("Subscription name can't be empty")
                for key in _set(alterations):
                    if key not in kafka_keys("client_metrics"):
                        raise InvalidRequestError(f"Unknown client metrics configuration: {key[:60]}")
                    raise InvalidRequestError(f"{key} cannot be set: seglog collects no metrics of clients")
            case ResourceType.GROUP:
                await self._alter_group(name, alterations, replaces=replaces, validate_only=validate_only)
            case _:
                raise unknown_resource(resource)

    async def _alter_topic(
        self, name: str, alterations: Sequence[Alteration], *, replaces: bool, validate_only: bool
    ) -> None:
        if not name:
            raise InvalidRequestError("Default topic resources are not allowed.")
        check_topic_name(name)

        def changed(own: Mapping[str, str]) -> dict[str, str]:
            defaults = self._config.current.topic_defaults
            return altered_settings(
                {} if replaces else own, alterations, TOPIC_NAMES, lambda key: getattr(defaults, key.attribute)
            )

        names = [alteration.name for alteration in alterations]
        reply = await self._topics.alter_config(name, changed, names, validate_only=validate_only)
        if not validate_only:
            for warning in reply.warnings:  # Kafka's answer has no place for them
                log.warning("config_warning", topic=name, reason=warning)

    async def _alter_broker(
        self, name: str, alterations: Sequence[Alteration], *, replaces: bool, validate_only: bool
    ) -> None:
        """Of this broker, or of all brokers, where ``name`` is empty. A list that is not set begins as it stands below.

        Values that are not possible are an InvalidRequestError, as in Kafka.
        """
        config = self._config
        broker = str(broker_number(name, config.static.node_id)) if name else dynamic_config.ALL_BROKERS
        kind = OriginKind.DYNAMIC_BROKER if name else OriginKind.DYNAMIC_DEFAULT
        for key, operation, _ in alterations:
            if operation in (Operation.APPEND, Operation.SUBTRACT) and not _is_list(key):
                word = Operation(operation).name.lower()
                raise InvalidConfigError(f"Config value {word} is not allowed for config key: {key[:60]}", key=key)
        if name and dynamic_config.FOR_ALL_BROKERS in _set(alterations):
            raise InvalidConfigError(
                f"{dynamic_config.FOR_ALL_BROKERS} is set for a topic or for all brokers, not for one broker",
                key=dynamic_config.FOR_ALL_BROKERS,
            )
        unknown = [key for key in _set(alterations) if key not in dynamic_config.SETTABLE]
        if unknown:
            raise InvalidRequestError(dynamic_config.why_not_dynamic(unknown))

        def changed(dynamic: dynamic_config.DynamicConfig) -> dynamic_config.DynamicConfig:
            known = {} if replaces else dynamic.of_broker(broker)
            settings = altered_settings(
                known, alterations, dynamic_config.DYNAMIC_KEYS, lambda key: dynamic_config.value_in(config.static, key)
            )
            return dynamic.with_broker(broker, dynamic_config.checked_settings(settings, kind))

        try:
            altered = await self.alter_dynamic(changed, validate_only=validate_only)
        except InvalidConfigError as error:
            raise InvalidRequestError(error.message) from error
        if altered:
            own = config.dynamic.of_broker(broker)
            named = {key: own[key] for key in _set(alterations) if key in own}
            for warning in dynamic_config.dynamic_warnings(
                named, config.current, kind
            ):  # Kafka's answer has no place for them
                log.warning("config_warning", reason=warning)

    def _check_switch(self, name: str, alterations: Sequence[Alteration], *, replaces: bool, administers: bool) -> None:
        """Refuse the switch to accounts that rules bind, and while super.users is empty: nobody could undo it."""
        altered = {alteration.name for alteration in alterations}
        if replaces:
            altered |= self._config.dynamic.of_broker(name).keys()
        if not administers and not altered.isdisjoint(_SWITCH):
            raise AuthorizationError(f"{' and '.join(_SWITCH)} are for those of super.users alone", principal="")
        if _SWITCH[0] in _set(alterations) and not self._config.current.super_users:
            raise InvalidRequestError(
                f"{_SWITCH[0]} cannot be set while super.users is empty: nobody could administer this broker, or take "
                "it back; name who does in its configuration, and send SIGHUP",
                field="",
            )

    async def _alter_group(
        self, name: str, alterations: Sequence[Alteration], *, replaces: bool, validate_only: bool
    ) -> None:
        if not name:
            raise InvalidRequestError("Default group resources are not allowed.")
        if len(name.encode()) > GROUP_BYTES_MAX:
            raise InvalidRequestError(f"a group with settings has a name of at most {GROUP_BYTES_MAX} bytes")

        def changed(dynamic: dynamic_config.DynamicConfig) -> dynamic_config.DynamicConfig:
            known = {} if replaces else dynamic.of_group(name)
            settings = altered_settings(known, alterations, GROUP_KEYS, lambda key: key.default)
            settings = checked_group_settings(settings, self._config.current)
            if settings and name not in dynamic.groups and len(dynamic.groups) >= GROUPS_MAX:
                raise PolicyViolationError(
                    f"{GROUPS_MAX:,} groups have settings of their own, which is the limit: delete those of another one"
                )
            return dynamic.with_group(name, settings)

        if await self.alter_dynamic(changed, validate_only=validate_only):
            log.info("group_configuration_changed", group=name, config=self._config.dynamic.of_group(name))

    async def alter_clients(
        self, changes: Mapping[Entity, Mapping[str, float | None]], by: str, *, validate_only: bool
    ) -> None:
        """Alter checked quotas of clients for the principal ``by``, all together; None takes one away.

        Raises PolicyViolationError where too many would have some, StorageError: nothing is altered.
        """
        before: ClientQuotas = {}

        def changed(dynamic: dynamic_config.DynamicConfig) -> dynamic_config.DynamicConfig:
            nonlocal before
            before = dynamic.clients
            return dynamic.with_clients(changes)

        if await self.alter_dynamic(changed, validate_only=validate_only):
            after, turns = self._config.dynamic.clients, Turns(self._scheduler.turn)
            for entity in changes:
                await turns.spend(LINE_COST)
                if before.get(entity) != after.get(entity):
                    quotas = dict(after.get(entity, {}))
                    log.info("client_quotas_changed", entity=entity_text(entity), quotas=quotas, principal=by)

    async def alter_dynamic(
        self, changed: Callable[[dynamic_config.DynamicConfig], dynamic_config.DynamicConfig], *, validate_only: bool
    ) -> bool:
        """Replace settings made at run time by what ``changed`` makes of them; return whether they differ.

        ``changed`` may raise. Nothing else changes the configuration meanwhile. With ``validate_only`` they are checked
        and stay.

        Raises InvalidConfigError for values that contradict each other, StorageError when the settings cannot be kept:
        then the former ones stay.
        """
        live = self._config
        async with live.lock:
            altered = changed(live.dynamic)
            dynamic_config.with_dynamic(live.static, altered)
            if validate_only or altered == live.dynamic:
                return False
            before = live.current
            with trio.CancelScope(shield=True):  # what is on the disk is to be in force
                await self._keep(altered)
                if altered.brokers == live.dynamic.brokers:
                    live.replace(live.static, altered)
                else:
                    await self._scheduler.in_turns(self._reconfigured(live.static, altered))
        for key, old, new, origin, _ in dynamic_config.differences(before, live.current):
            log.info("configuration_changed", key=key, old=old, new=new, origin=str(origin))
        return True

    async def _keep(self, altered: dynamic_config.DynamicConfig) -> None:
        path = f"{self._directory.path}/{DYNAMIC_CONFIGS_FILE}"
        content = encode_dynamic_configs(altered)
        await self._replace_file(_NOT_KEPT, "send them again", write_file_atomically, self._fs, path, content)

    def _refuse_logger(self, name: str, alterations: Sequence[Alteration]) -> None:
        broker_number(name, self._config.static.node_id)
        for logger, operation, _ in alterations:
            if operation in (Operation.APPEND, Operation.SUBTRACT):
                what = Operation(operation).name
                raise InvalidRequestError(f"{what} operation is not allowed for the BROKER_LOGGER resource")
            if logger != ROOT_LOGGER:
                raise InvalidConfigError(f"Logger {logger[:60]} does not exist!", key=logger)
            if operation == Operation.DELETE:
                raise InvalidRequestError("Removing the log level of the root logger is not allowed")
            raise InvalidRequestError("The level of the root logger is seglog.log.level: set that key of the broker")


def _is_list(name: str) -> bool:
    """Whether a key of brokers is a list: of seglog's, or of Kafka's alone."""
    if name in dynamic_config.DYNAMIC_KEYS:
        return dynamic_config.DYNAMIC_KEYS[name].kind.type_name == "list"
    kafka = kafka_keys("broker").get(name)
    return kafka is not None and kafka.type == "LIST"


def _set(alterations: Sequence[Alteration]) -> list[str]:
    """The names of the keys that would get a value."""
    return [alteration.name for alteration in alterations if alteration.operation != Operation.DELETE]
