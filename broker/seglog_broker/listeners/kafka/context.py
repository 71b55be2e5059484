"""What the handlers of Kafka requests are given, and how they are registered."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from seglog_broker.api.broker import Broker
from seglog_broker.config import BrokerConfig
from seglog_broker.coordinators.groups.service.service import GroupService
from seglog_broker.coordinators.groups.topics import id_text
from seglog_broker.coordinators.transactions.service.service import TransactionService
from seglog_broker.listeners.kafka.errors import Failure
from seglog_broker.listeners.session import Need, Session, error_for
from seglog_broker.listeners.usage import Usage
from seglog_broker.runtime.response_memory import RESPONSE_BYTES_MAX, Room
from seglog_broker.storage.directory.topic_registry import Topic, Topics
from seglog_protocol.access import CLUSTER, Kind, Operation
from seglog_protocol.errors import InvalidRequestError
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Response

LEADER_EPOCH: Final = 0
"""The leader epoch of partitions without a log in service."""


class Endpoint(NamedTuple):
    """An advertised listener."""

    host: str
    port: int


@dataclass(eq=False, repr=False)
class RequestContext:
    """What the response to a request depends on besides the request itself."""

    broker: Broker
    advertised: Endpoint
    """The advertised listener of this client's port."""
    version: int
    """The version of the request's api."""
    client_id: str | None
    client_address: str
    """The client's address, as ``shown_host`` writes it."""
    room: Room
    """The memory of the response."""
    session: Session
    """Who the client is."""
    usage: Usage
    """Its use of quotas."""
    is_carried: bool = False
    """True if the request came within a native one."""

    @property
    def listener_name(self) -> str:
        """The name of the listener that the client has reached."""
        return self.session.listener.name or "PLAINTEXT"

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        return self.broker.config

    @property
    def groups(self) -> GroupService:
        """The groups that the broker coordinates."""
        return self.broker.groups

    @property
    def transactions(self) -> TransactionService:
        """The transactions that the broker coordinates."""
        return self.broker.transactions

    @property
    def topics(self) -> Topics:
        """The topics that exist, by name."""
        return self.broker.directory.registry.topics

    def topic_with_id(self, topic_id: bytes) -> Topic | None:
        """The topic with an id, as requests have it."""
        return self.topics.with_id(id_text(topic_id))

    @property
    def node_id(self) -> int:
        """The only node of the cluster."""
        return self.broker.config.node_id

    def code_for(self, operation: Operation, kind: Kind, name: str) -> ErrorCode:
        """The code of a thing that the client may not do an operation with; NONE if it may."""
        return (
            ErrorCode.NONE if self.session.allows(operation, kind, name) else ErrorCode(error_for(kind)[0].kafka_code)
        )

    def check(self, operation: Operation, kind: Kind, name: str = CLUSTER) -> None:
        """Raise AuthorizationError if the client may not do an operation with a resource."""
        refusal = self.session.refusal(operation, kind, name)
        if refusal is not None:
            raise refusal

    def turn(self) -> Awaitable[None]:
        """Wait for the next turn of a request with much work, and for the memory of a large response."""
        return self.room.wait_after(self.broker.turn)

    def reserve(self, size: int) -> None:
        """Count ``size`` bytes before a part of the response is made. Raises InvalidRequestError for too many."""
        if not self.room.add(size):
            raise InvalidRequestError(
                f"one response takes at most {RESPONSE_BYTES_MAX // 2**20} MiB: ask for less at a time", field=""
            )


class Ask(NamedTuple):
    """The operation that a request is, with the cluster or, where it is about one group or the like, with that."""

    operation: Operation
    kind: Kind = Kind.CLUSTER
    field: str = ""
    """The field of the request that names it."""
    words: str | None = None
    """What a client is told who may not; for the cluster that is the broker's own sentence."""


class Repeats(NamedTuple):
    """How requests of an api repeat, and their responses: which numbers vary (``templates``).

    Structs are named by the arrays that they stand in, one in the other; without any, it is the message itself.
    """

    asked: tuple[tuple[tuple[str, ...], str], ...] = ()
    """Structs of a request, each with the field that varies in it."""
    answered: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ("error_code",)
    """The fields of each of these structs of a response that vary: they stand one after the other.

    Without any, responses are written by the codec.
    """
    has_records: bool = False
    """Whether ``records`` follow in each of these."""
    fixed: str | None = None
    """A field of these that varies seldom."""


class Api(NamedTuple):
    """One api: its key and name, the versions that are accepted, and its handlers."""

    key: int
    name: str
    versions: range
    handle_now: Callable[[RequestContext, Any], Response | None] | None = None
    """Synchronous handler; returns None to defer to ``handle``."""
    handle: Callable[[RequestContext, Any], Awaitable[Response]] | None = None
    """Asynchronous handler, run in the connection's task."""
    waits: bool = False
    """True if ``handle`` may wait for minutes: it is cancelled when the client disconnects or the broker stops."""
    begins: bool = False
    """True if ``handle`` has a task take over before it waits for more than a ``Signal``: it may begin without one."""
    repeats: Repeats | None = None
    """Given where clients send the same again and again."""
    asks: Ask | None = None
    """What rules have to allow. What is about several things, or none, asks for each in its handler."""
    needs: Need | Callable[[Any], Need] | None = None
    """The need of a request, of the cluster or of administrators; a function of the request where that says so."""
    is_carried: bool = False
    """True if native clients may ask it, too (``carried``)."""

    def refusal_of(self, session: Session, request: Any) -> Failure | None:
        """The reason why a client may not ask this; None if it may."""
        if self.asks is not None:
            operation, kind, field, words = self.asks
            refusal = session.refusal(operation, kind, getattr(request, field) if field else CLUSTER)
            if refusal is not None:
                return Failure(ErrorCode(refusal.kafka_code), words if field else refusal.message)
        needed = self.needs(request) if callable(self.needs) else self.needs
        refusal = None if needed is None else session.refusal_of(needed)
        return None if refusal is None else Failure(ErrorCode(refusal.kafka_code), refusal.message)
