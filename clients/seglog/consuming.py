"""What a consumer of either face knows and decides without waiting, around the fetching core.

One fetch is on its way while the program works on the records of the one before it; ``Asked`` is that fetch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from seglog.connection import Reply
from seglog.conversations import Conversation
from seglog.dialing import backoff_seconds
from seglog.fetching import FETCH_BYTES, PARTITION_BYTES, FetchedBatch, Fetcher, OutOfRange, PartitionState, Record
from seglog.gaps import ConsumerGap, GapLog
from seglog.lag import PartitionLag, look_up_lag
from seglog.moments import to_positions
from seglog.starting import Place, begin
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX
from seglog_protocol.errors import (
    ClientClosedError,
    ClientTimeoutError,
    ConnectionLostError,
    SeglogError,
    UnknownPartitionError,
    UnknownTopicError,
)
from seglog_protocol.messages import CancelRequest, FetchReply, FetchRequest, HelloReply, decode_reply

ANSWER_SECONDS: Final = 30.0
"""How much longer than the broker was asked to wait an answer may take before the connection counts as dead."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What ``Client.consumer`` takes."""

    partitions: Sequence[int] | None = None
    start: Place | None = None
    until: Place | None = None
    follow: bool = False
    durable_only: bool = False
    on_out_of_range: OutOfRange = "error"
    on_gap: Callable[[ConsumerGap], None] | None = None
    reconnect_timeout: float = 120.0
    decompressed_batch_bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX
    fetch_bytes: int = FETCH_BYTES
    partition_bytes: int = PARTITION_BYTES

    def __post_init__(self) -> None:
        if self.on_out_of_range not in {"error", "earliest", "latest"}:
            raise ValueError(f"on_out_of_range is 'error', 'earliest' or 'latest', not {self.on_out_of_range!r}")

    def begin(self, topic: str) -> Conversation[list[PartitionState]]:
        """Find out where to start; without ``start`` at the earliest, or with ``follow`` at the latest."""
        start = self.start
        if start is None:
            start = "latest" if self.follow else "earliest"
        return self.places(topic, self.partitions, start)

    def places(self, topic: str, partitions: Sequence[int] | None, start: Place) -> Conversation[list[PartitionState]]:
        """Find out where ``start`` is."""
        return begin(topic, partitions, start, self.until, follow=self.follow, durable_only=self.durable_only)


@dataclass(slots=True, eq=False)
class Asked:
    """A fetch on its way, and its answer when that is there; behind ``deadline`` the connection counts as dead."""

    request: FetchRequest
    generations: dict[int, int]
    deadline: float
    request_id: int = -1
    reply: Reply | None = None

    def take(self, reply: Reply) -> None:
        """The answer is there."""
        self.reply = reply


class Retries:
    """How long to go on after errors that a new connection may cure."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: float | None = None
        self._attempts = 0

    def worked(self) -> None:
        """What failed before does not count any more."""
        self._since, self._attempts = None, 0

    def failed(self, error: SeglogError, now: float) -> tuple[float, float]:
        """Seconds to wait before connecting again, and how many connecting may take; raises what is to be raised."""
        if not (error.retriable or isinstance(error, ClientTimeoutError)):
            raise error
        self._since = now if self._since is None else self._since
        remaining = self._since + self._timeout - now
        if remaining <= 0:
            raise error
        pause = min(remaining, backoff_seconds(self._attempts - 1)) if self._attempts else 0.0
        self._attempts += 1
        return pause, remaining - pause


class ConsumerBase:
    """The part of a consumer that never waits. A face adds reading, ``seek``, and ``_forget_asked``."""

    def __init__(self, topic: str, options: ConsumerOptions, states: Sequence[PartitionState]) -> None:
        self.topic = topic
        self.options = options
        self._asked: Asked | None = None
        self._unwanted: list[CancelRequest] = []
        """For fetches that wait at the broker for nobody; they go before the next fetch, and their answers nowhere."""
        self._is_closed = False
        self._fetcher = Fetcher(
            topic,
            states,
            follow=options.follow,
            on_out_of_range=options.on_out_of_range,
            durable_only=options.durable_only,
            size_limit=options.decompressed_batch_bytes_max,
            fetch_bytes=options.fetch_bytes,
            partition_bytes=options.partition_bytes,
            retry_seconds=options.reconnect_timeout,
        )
        if options.follow and options.partitions is None:
            self._fetcher.partition_count = len(states)  # all there are now, and those that are added

    # --- Reading ------------------------------------------------------------------------------------------------------

    def _queued(self) -> FetchedBatch | None:
        """The next batch of those that are here, with its gaps told; None when there is none."""
        if self._is_closed:
            raise self._closed()
        try:
            batch = self._fetcher.next_batch()
        finally:
            self._tell_gaps()
        if self._fetcher.must_ask_again:
            self._fetcher.must_ask_again = False
            if self._asked is not None:
                self._forget_asked()  # it may wait long at the broker for what comes behind
        return batch

    @staticmethod
    def _closed() -> ClientClosedError:
        return ClientClosedError("the consumer is closed")

    def _records(self, batch: FetchedBatch) -> Iterator[Record]:
        """The records of a batch, until it is used up or the program goes elsewhere."""
        topic, partition = batch.topic, batch.partition
        state = self._fetcher.states[partition]
        generation = state.generation
        for stored in batch.stored():
            offset = stored[0]
            if offset != state.position:
                self._fetcher.skipped(state, offset)
                self._tell_gaps()
            state.position = offset + 1
            yield Record(topic, partition, *stored)
            if state.generation != generation or state.is_paused or self._is_closed:
                return
        self._fetcher.finish(batch)
        self._tell_gaps()

    def _whole(self, batch: FetchedBatch) -> FetchedBatch:
        """The batch itself, which counts as read when it is handed out."""
        self._fetcher.states[batch.partition].position = batch.end_offset
        return batch

    def _next_fetch(self, now: float, hello: HelloReply) -> Asked | None:
        """What to ask next of the broker that said ``hello``, or None when there is nothing to ask for at this time.

        A consumer may outlive the broker that told it the topic's id, and be served by an older one.
        """
        version = max(hello.apis.get(FetchRequest.api, ()), default=1)
        request = self._fetcher.request(now, version=version)
        if request is None:
            return None
        deadline = now + request.max_wait_ms / 1000 + ANSWER_SECONDS
        return Asked(request, self._fetcher.generations(), deadline)

    def _take(self, asked: Asked, now: float, server: str) -> None:
        """Take in the answer to the fetch on its way; ConnectionLostError when there is none."""
        if asked.reply is None:
            raise ConnectionLostError(f"{server} does not answer a fetch", server=server)
        self._asked = None
        reply = decode_reply(asked.reply.header, FetchReply)
        self._fetcher.take(reply, asked.reply.payload, asked.request, asked.generations, now)

    def _where_added(self) -> Conversation[list[PartitionState]] | None:
        """Where partitions begin that were added to the topic: at the earliest, nothing of theirs has been read."""
        added = self._fetcher.added
        return self._look_up(added) if added else None

    def _look_up(self, added: list[int]) -> Conversation[list[PartitionState]]:
        """Nothing where they are not there any more: what has become of the topic, the next fetch tells in its turn."""
        try:
            return (yield from self.options.places(self.topic, added, "earliest"))
        except (UnknownTopicError, UnknownPartitionError):
            return []

    def _pause_seconds(self, now: float) -> float:
        """How long there is nothing to ask."""
        next_look = self._fetcher.next_look()
        assert next_look is not None, "nothing to ask, nothing queued, and not finished"
        return max(0.0, next_look - now)

    def _tell_gaps(self) -> None:
        met = self._fetcher.met
        while met:
            gap = met.popleft()
            if self.options.on_gap is not None:
                self.options.on_gap(gap)

    def _lag(self) -> Conversation[dict[int, PartitionLag]]:
        return look_up_lag(self.topic, self.positions(), durable_only=self.options.durable_only)

    # --- Where we are -------------------------------------------------------------------------------------------------

    def positions(self) -> dict[int, int]:
        """The offset of the next record of every partition, as ``start`` takes it, also by way of JSON."""
        return {state.partition: state.position for state in self._fetcher.states.values()}

    def records_behind(self) -> dict[int, int]:
        """How many offsets every partition is behind the newest end that the broker has named; asks for nothing."""
        return {s.partition: max(0, self._end_of(s) - s.position) for s in self._fetcher.states.values()}

    def _end_of(self, state: PartitionState) -> int:
        return state.durable if self.options.durable_only else state.latest

    @property
    def gaps(self) -> GapLog:
        """Offsets without a record that were met so far."""
        return self._fetcher.gaps

    # --- Moving -------------------------------------------------------------------------------------------------------

    def _go_to(self, places: Mapping[int, int] | Mapping[str, int]) -> None:
        positions = to_positions(places)
        for partition in positions:
            self._state(partition)
        for partition, offset in positions.items():
            self._fetcher.states[partition].go_to(offset)
        self._forget_asked()

    def pause(self, partitions: Iterable[int] | None = None) -> None:
        """Hand out nothing of these partitions (None: all) until ``resume``. With all paused, iteration ends."""
        for state in self._chosen(partitions):
            state.is_paused = True
        if self._fetcher.is_finished:
            self._forget_asked()  # a fetch that waits at the broker would keep iteration from ending

    def resume(self, partitions: Iterable[int] | None = None) -> None:
        """Go on with these partitions (None: all)."""
        paused = [state for state in self._chosen(partitions) if state.is_paused]
        for state in paused:
            state.is_paused = False
        if paused:
            self._forget_asked()

    def _chosen(self, partitions: Iterable[int] | None) -> list[PartitionState]:
        if partitions is None:
            return list(self._fetcher.states.values())
        return [self._state(partition) for partition in partitions]

    def _state(self, partition: int) -> PartitionState:
        state = self._fetcher.states.get(partition)
        if state is None:
            raise ValueError(f"this consumer does not read partition {partition} of {self.topic}")
        return state

    def _forget_asked(self) -> None:
        """The fetch on its way may wait long at the broker for what is not wanted most now: ask anew."""
        raise NotImplementedError

    def _forgotten(self, asked: Asked) -> None:
        """A fetch that nobody waits for any more: the broker is told before it is asked for the next one."""
        if asked.reply is None and asked.request.max_wait_ms:
            self._unwanted.append(CancelRequest(asked.request_id))
