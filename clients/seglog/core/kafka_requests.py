"""Requests of Kafka's wire, asked within native ones, and the errors that their responses hold."""

from collections.abc import Mapping
from typing import Any, Final

from seglog.core.conversations import Conversation, ask
from seglog_protocol import errors
from seglog_protocol.frame_receiver import LENGTH_SIZE
from seglog_protocol.kafka import Malformed, messages, read_response, write_request
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Request
from seglog_protocol.messages import KafkaReply, KafkaRequest

GROUP: Final = 32
"""Kafka's number for groups, among what has a configuration."""

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Codes that Kafka's clients try again, beside those whose errors say so themselves."""


_UNSAID: Final = "authorization failed."
"""The end of Kafka's sentences about a refusal, which say no more than their codes."""

_NAMES: Final[Mapping[int, str]] = {code.value: code.name for code in ErrorCode}
_BY_KAFKAS_NAME: Final = {kind.kafka_name: kind for kind in reversed(errors.WIRE_ERRORS) if kind.kafka_name}


def ask_kafka(request: Request, version: int, client_id: str = "", *, is_repeatable: bool = False) -> Conversation[Any]:
    """Ask in this version; returns the response. Raises UnsupportedApiError where the broker is older than that."""
    frame = memoryview(b"".join(write_request(0, client_id or None, request, version)))[LENGTH_SIZE:]
    try:
        _, found = yield from ask(KafkaRequest(), KafkaReply, [frame], is_repeatable=is_repeatable)
    except (errors.UnsupportedApiError, errors.UnsupportedVersionError) as error:
        name = type(request).__name__.removesuffix("Request")
        raise errors.UnsupportedApiError(
            f"the broker is older than this client, and does not serve {name} in version {version}: upgrade seglogd",
            api=name,
        ) from error
    try:
        return read_response(request.API_KEY, version, found)[1]
    except Malformed as error:
        raise errors.RemoteProtocolError(f"the broker's answer is not understood: {error}") from error


def kafka_error(code: int, message: str | None, told: str, **facts: errors.Fact) -> errors.SeglogError | None:
    """The error for a code of a response, None for success; ``told`` is its sentence where the response has none.

    Of ``facts`` it has those that its class promises.
    """
    if code == ErrorCode.NONE:
        return None
    name = _NAMES.get(code, str(code))
    kind = errors.BY_CODE.get(name) or _BY_KAFKAS_NAME.get(name, errors.UnknownCodeError)
    sentence = message or f"{told}: {name}"
    if issubclass(kind, errors.AuthorizationError) and (message or _UNSAID).endswith(_UNSAID):
        sentence = f"{told}: this account may not do that ({name}); who administers the broker can allow it"
    if kind is errors.UnknownCodeError:
        facts |= {"wire_code": name}
    error = kind(sentence, **{fact: facts[fact] for fact in facts.keys() & errors.promised_facts(kind)})
    error.retriable = error.retriable or code in _RETRIABLE
    return error


def check_kafka(code: int, message: str | None, told: str, **facts: errors.Fact) -> None:
    """Raise ``kafka_error``, unless the code is that of success."""
    error = kafka_error(code, message, told, **facts)
    if error is not None:
        raise error


def set_group_config(group: str, values: Mapping[str, str | None], client_id: str = "") -> Conversation[None]:
    """Give a group settings of its own; None takes one back. Raises InvalidConfigError, AuthorizationError."""
    cls = messages.IncrementalAlterConfigsRequest
    configs = [
        cls.AlterableConfig(name=name, config_operation=value is None, value=value) for name, value in values.items()
    ]
    resource = cls.AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=configs)
    response = yield from ask_kafka(cls(resources=[resource]), 1, client_id)
    for result in response.responses:
        check_kafka(result.error_code, result.error_message, f"the settings of {group}", group=group)
