"""What a mirror raises, and what librdkafka reports as one of our errors."""

from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from seglog_protocol.errors import AuthenticationError, AuthorizationError, ClientError, NotReachableError, SeglogError


class MirrorError(ClientError):
    """What was found on one of the sides does not let a mirror begin, or go on; the message says what to do."""


LOGIN: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})  # noqa: SLF001 - its names
"""An account was refused, which asking again does not mend."""
AWAY: Final = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._SSL,  # noqa: SLF001
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError._NOENT,  # noqa: SLF001 - no leader is known at the moment
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,  # the broker has started anew, and metadata are not yet
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # created or deleted a moment ago: ``check_same`` sees which
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
"""A broker is away, or not yet ready: worth asking again."""
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)


def code_of(error: KafkaException) -> int:
    """The number that librdkafka or Kafka has for what went wrong."""
    return int(error.args[0].code())


def translated(error: Any, name: str, why: str = "") -> SeglogError:
    """A KafkaError of the side ``name`` as one of ours; ``why`` is what its connections reported last."""
    code, text = int(error.code()), str(error.str())
    if code in LOGIN:
        return AuthenticationError(f"{name} refuses the account: {text}")
    if code in AWAY:
        asked = f"{text}; is this a listener with TLS (kafkas://), or with accounts (--kafka-config)?"
        return NotReachableError(f"{name} does not answer: {why or asked}", server=name)
    if code in _REFUSED:
        return AuthorizationError(f"{name} does not allow it: {text}; give the account the right, see docs/BACKUP.md")
    return MirrorError(f"{name}: {text}")
