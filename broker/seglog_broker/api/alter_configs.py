"""Alterations of a topic's settings as Kafka's clients ask for them: set, delete, append to a list, subtract from it.

A pure computation of the new settings; values are checked where every alteration is (``TopicService.alter_config``).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from seglog_broker.config import BrokerConfig
from seglog_broker.config.kafka_configs import Alteration, Operation
from seglog_broker.config.keys import Key
from seglog_broker.config.topic_config import TOPIC_NAMES
from seglog_broker.config.values import split_list
from seglog_protocol.errors import InvalidConfigError, InvalidRequestError

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


def altered_settings(own: Mapping[str, str], alterations: Sequence[Alteration], config: BrokerConfig) -> dict[str, str]:
    """What the settings ``own`` of a topic become. The values that are set are not checked yet, and ``own`` is kept.

    A list that the topic does not set begins with the broker's default. Deleting what is not set, or not known, changes
    nothing.

    Raises InvalidConfigError for APPEND and SUBTRACT where there is no list; see also ``check_alterations``.
    """
    check_alterations(alterations)
    wanted = dict(own)
    for name, operation, value in alterations:
        key = TOPIC_NAMES.get(name)
        match operation:
            case Operation.SET:
                wanted[name] = value or ""
            case Operation.DELETE:
                wanted.pop(name if key is None else key.name, None)
            case _:
                list_key = _list_key(name, key, Operation(operation))
                current = own.get(list_key.name)
                if current is None:
                    current = list_key.text(getattr(config.topic_defaults, list_key.attribute))
                wanted[list_key.name] = _with_words(list_key, current, value or "", Operation(operation))
    return wanted


def _list_key(name: str, key: Key | None, operation: Operation) -> Key:
    if key is None or key.kind.type_name != "list":
        raise InvalidConfigError(f"Can't {operation.name} to key {name[:60]} because its type is not LIST.", key=name)
    return key


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
