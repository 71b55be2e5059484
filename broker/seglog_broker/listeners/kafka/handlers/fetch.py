"""Fetch: requests to the broker's fetches, and its answers to responses whose records stay in their files.

Fetch
  4   isolation level, last stable offset, aborted transactions
  5   log start offset
  6   KAFKA_STORAGE_ERROR
  7   sessions: the session id 0 of the response means that none begins
  9   current leader epoch
  10  zstd
  11  rack of the client, preferred replica
  12  flexible; epoch of the last record that was fetched, which is not looked at
  13  topics by id
  14  OFFSET_MOVED_TO_TIERED_STORAGE
  15  state of a replica that fetches
  16  endpoints of nodes, in a tagged field that is never sent
  17  directory of a replica that fetches
  18  high watermark of a replica that fetches
"""

from typing import Final

from seglog_broker.listeners.kafka.context import Api, Repeats, RequestContext
from seglog_broker.listeners.kafka.errors import error_code
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_broker.runtime import budget
from seglog_protocol.access import Kind, Operation
from seglog_protocol.errors import SeglogError
from seglog_protocol.isolation import READ_COMMITTED, Isolation
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import FetchPartition, FetchRequest, FetchResult
from seglog_protocol.steps import Steps

TOPIC_ID_VERSION_MIN: Final = 13
"""The first version of Fetch that names topics by their ids."""

PARTITIONS_MAX: Final = 10_000
"""The most partitions in a Fetch request, as in one on the native port."""

PARTITIONS_A_TURN: Final = budget.items_of(4)
"""Partitions that are looked at before other tasks run."""

EPOCH_NOT_KNOWN: Final = -1
"""The leader epoch of a client that knows none: it is not checked."""

_READ_COMMITTED: Final = 1
_READ: Final = Operation.READ  # Python looks long for a member of an enumeration
_TOPIC: Final = Kind.TOPIC
_NO_SESSION: Final = 0
_FOLLOWER_MIN: Final = 0
_WHOLE_FETCHES: Final = (0, -1)
"""Session epochs of requests that name all their partitions: they begin a session, or end the one that they name."""

_PartitionData = messages.FetchResponse.PartitionData
_AbortedTransaction = messages.FetchResponse.AbortedTransaction
_TopicResponse = messages.FetchResponse.FetchableTopicResponse


def isolation_of(level: int) -> Isolation | None:
    """The isolation that a request's ``isolation_level`` means; None is the default."""
    return READ_COMMITTED if level == _READ_COMMITTED else None


def epoch_error(known: int, current: int) -> ErrorCode | None:
    """Error of a client that knows epoch ``known`` of a partition whose epoch is ``current``; None if there is none."""
    if known in (EPOCH_NOT_KNOWN, current):
        return None
    return ErrorCode.FENCED_LEADER_EPOCH if known < current else ErrorCode.UNKNOWN_LEADER_EPOCH


class Fetch:
    """One Fetch request: the request to the broker, and the response."""

    def __init__(self, context: RequestContext, request: messages.FetchRequest) -> None:
        """``read`` it to its end before anything else."""
        self._context = context
        self._asked = request
        self._session_refused = request.session_id != _NO_SESSION and request.session_epoch not in _WHOLE_FETCHES
        self.response = messages.FetchResponse(session_id=_NO_SESSION)
        if self._session_refused:
            self.response.error_code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        self.max_wait_ms = max(0, request.max_wait_ms)
        self._all: list[_PartitionData] = []  # partitions of the response
        self._places: list[_PartitionData] = []  # those that the broker is asked for
        self._errors = 0  # partitions with an error
        self.request = FetchRequest([])
        self.count = sum([len(topic.partitions) for topic in request.topics])
        """The partitions that it names."""

    @property
    def is_large(self) -> bool:
        """True if other tasks must run between its parts."""
        return self.count > PARTITIONS_A_TURN

    def read(self) -> Steps[None]:
        """Make ``request``; yields where other tasks may run. Rules count that are in force now, not after a wait."""
        wanted: list[FetchPartition] = []
        session = self._context.session
        state = self._asked.replica_state
        is_follower = (self._asked.replica_id if state is None else state.replica_id) >= _FOLLOWER_MIN
        is_barred = is_follower and not session.allows(Operation.CLUSTER_ACTION, Kind.CLUSTER)
        for topic in [] if self._session_refused else self._asked.topics:
            name: str | None = topic.topic
            if self._context.version >= TOPIC_ID_VERSION_MIN:
                known = self._context.topic_with_id(topic.topic_id)
                name = None if known is None else known.name
            refused: ErrorCode | None = None
            if is_barred or not (is_follower or name is None or session.allows(_READ, _TOPIC, name)):
                refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            answered = _TopicResponse(topic=name or "", topic_id=topic.topic_id)
            self.response.responses.append(answered)
            for item in topic.partitions:
                data = _PartitionData(partition_index=item.partition, high_watermark=-1, records=b"")
                answered.partitions.append(data)
                self._all.append(data)
                if len(self._all) % PARTITIONS_A_TURN == 0:
                    yield
                refusal = refused or self._why_refused(name, item, is_follower=is_follower)
                if refusal is not None:
                    data.error_code = refusal
                    self._errors += 1
                    continue
                assert name is not None
                self._places.append(data)
                log = self._context.broker.partitions.find_readable(name, item.partition)
                offset = item.fetch_offset if log is None else log.log.behind_unsynced(item.fetch_offset)
                wanted.append(FetchPartition(name, item.partition, offset, max_bytes=max(0, item.partition_max_bytes)))
        most = max(0, min(self._asked.max_bytes, self._context.usage.fetched_bytes_max()))
        self.request = FetchRequest(
            wanted,
            max_bytes=most,
            min_bytes=max(0, min(self._asked.min_bytes, most)),
            max_wait_ms=0 if self._errors or not wanted else self.max_wait_ms,
            isolation=isolation_of(self._asked.isolation_level),
        )

    def _why_refused(
        self, name: str | None, item: messages.FetchRequest.FetchPartition, *, is_follower: bool
    ) -> ErrorCode | None:
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        log = self._context.broker.partitions.find_readable(name, item.partition)
        if log is None:
            return None  # the broker's error for the partition comes first
        if is_follower:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER  # the only node has none
        refusal = epoch_error(max(EPOCH_NOT_KNOWN, item.current_leader_epoch), log.log.leader_epoch)
        if refusal is None and item.fetch_offset < 0:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return refusal

    @property
    def has_only_errors(self) -> bool:
        """True if the response has partitions, each with an error: then it is held."""
        return 0 < len(self._all) == self._errors

    def found(self, answer: FetchAnswer) -> Steps[None]:
        """Copy what the broker found into ``response``; yields where other tasks may run.

        A client that is above a quota with it gets nothing of it.
        """
        payload, slices = answer.payload, iter(answer.slices)
        for number, (data, result) in enumerate(zip(self._places, answer.reply.partitions, strict=True), start=1):
            self._note(data, result)
            if result.size:
                if payload:
                    data.records, payload = payload[: result.size], payload[result.size :]
                else:
                    data.records = next(slices)
            if number % PARTITIONS_A_TURN == 0:
                yield
        if not self._context.usage.note_fetched(answer.size, is_refusable=True):
            self.response.responses.clear()  # as Kafka: the client asks again when it is read again

    def empty_response(self) -> messages.FetchResponse:
        """The response without records, because the connection ends: clients ask for metadata, and connect again."""
        for data in self._places:
            data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return self.response

    def failed_response(self, error: SeglogError) -> messages.FetchResponse:
        """The response to a request that failed as a whole."""
        for data in self._places:
            data.error_code = error_code(error)
        return self.response

    def _note(self, data: _PartitionData, result: FetchResult) -> None:
        if result.error is not None:
            data.error_code = error_code(result.error)
            self._errors += 1
            return
        assert result.latest is not None
        assert result.earliest is not None
        assert result.last_stable_offset is not None
        data.high_watermark, data.last_stable_offset = result.latest, result.last_stable_offset
        data.log_start_offset = result.earliest
        data.aborted_transactions = None  # as Kafka: null without the question, which is not the default of the field
        if result.aborted is not None:
            data.aborted_transactions = [
                _AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                for producer_id, first_offset in result.aborted
            ]


_REPEATS: Final = Repeats(
    ((("topics", "partitions"), "fetch_offset"),),
    ("responses", "partitions"),
    ("error_code", "high_watermark", "last_stable_offset", "log_start_offset"),
    has_records=True,
    fixed="aborted_transactions",
)

APIS: Final = (Api(1, "Fetch", range(4, 19), repeats=_REPEATS),)
