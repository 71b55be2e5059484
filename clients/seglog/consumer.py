"""The blocking consumer: a link and one pipelined fetch around the fetching core.

There is no thread: while the program works on one answer's records, the next fetch is already on its way, and its
answer waits in the socket.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from seglog.connection import Reply
from seglog.dialer import Dialer, backoff_seconds
from seglog.fetching import (
    FETCH_BYTES,
    PARTITION_BYTES,
    FetchedBatch,
    Fetcher,
    OutOfRange,
    PartitionState,
    Record,
)
from seglog.gaps import ConsumerGap, GapLog
from seglog.link import Link
from seglog.starting import Place, begin
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX
from seglog_protocol.errors import ClientClosedError, ClientTimeoutError, ConnectionLostError, SeglogError
from seglog_protocol.messages import FetchReply, FetchRequest, decode_reply

ANSWER_SECONDS: Final = 30.0
"""How much longer than the broker was asked to wait an answer may take before the connection counts as dead."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What ``Client.consumer`` takes."""

    partitions: Sequence[int] | None = None
    start: Place = "earliest"
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


@dataclass(slots=True, eq=False)
class _Asked:
    """The fetch on its way, and its answer when that is there."""

    request: FetchRequest
    generations: dict[int, int]
    deadline: float
    request_id: int = -1
    reply: Reply | None = None


class Consumer:
    """Reads one topic; iterate over it for records, over ``batches()`` for verified batches.

    Made by ``Client.consumer``, with a connection of its own. One thread at a time; close it, or use it as a context
    manager. Leaving a loop and entering a new one goes on with the next record.
    """

    def __init__(self, dialer: Dialer, link: Link, topic: str, options: ConsumerOptions, *, timeout: float) -> None:
        self.topic = topic
        self.options = options
        self._dialer = dialer
        self._link: Link | None = link
        self._timeout = timeout
        self._asked: _Asked | None = None
        self._is_closed = False
        self._fetcher = Fetcher(
            topic,
            self._begin(link, options.partitions, options.start),
            follow=options.follow,
            on_out_of_range=options.on_out_of_range,
            durable_only=options.durable_only,
            size_limit=options.decompressed_batch_bytes_max,
            fetch_bytes=options.fetch_bytes,
            partition_bytes=options.partition_bytes,
        )

    # --- Reading ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record]:
        """Records in order within each partition.

        Ends at the end seen at start, at ``until``, when everything is paused, or with ``follow`` never. Raises
        CorruptRecordError, naming the offsets that cannot be read: ``seek({partition: error.next_offset})`` goes on
        behind them; OffsetOutOfRangeError; NotReachableError when the broker stays away for ``reconnect_timeout``.
        """
        topic, states = self.topic, self._fetcher.states
        while (batch := self._next_batch()) is not None:
            partition = batch.partition
            state = states[partition]
            generation = state.generation
            for stored in batch.stored():
                offset = stored[0]
                if offset != state.position:
                    self._fetcher.skipped(state, offset)
                    self._tell_gaps()
                state.position = offset + 1
                yield Record(topic, partition, *stored)
                if state.generation != generation or state.is_paused or self._is_closed:
                    break
            else:
                self._fetcher.finish(batch)
                self._tell_gaps()

    def batches(self) -> Iterator[FetchedBatch]:
        """Verified batches with their header fields and raw bytes; ends and raises as iteration over records does."""
        while (batch := self._next_batch()) is not None:
            self._fetcher.states[batch.partition].position = batch.end_offset
            yield batch

    def _next_batch(self) -> FetchedBatch | None:
        failures_since: float | None = None
        attempt = 0
        while True:
            if self._is_closed:
                raise ClientClosedError("the consumer is closed")
            if self._link is not None:
                self._link.check_process()
            try:
                batch = self._fetcher.next_batch()
                self._tell_gaps()
                if batch is not None:
                    return batch
                if self._fetcher.is_finished:
                    return None
                self._fetch()
                failures_since, attempt = None, 0
            except SeglogError as error:
                if not (error.retriable or isinstance(error, ClientTimeoutError)):
                    raise
                now = time.monotonic()
                failures_since = now if failures_since is None else failures_since
                self._reconnect(failures_since + self.options.reconnect_timeout - now, error, attempt)
                attempt += 1

    def _fetch(self) -> None:
        """Take the answer of the fetch on its way, and send the next one before anybody works on it."""
        if self._asked is None:
            self._ask()
        asked = self._asked
        if asked is None:
            next_look = self._fetcher.next_look()
            assert next_look is not None, "nothing to ask, nothing queued, and not finished"
            time.sleep(max(0.0, next_look - time.monotonic()))
            return
        assert self._link is not None
        if not self._link.wait(lambda: asked.reply is not None, asked.deadline - time.monotonic()):
            raise ConnectionLostError(f"{self._dialer.server} does not answer a fetch", server=self._dialer.server)
        self._asked = None
        assert asked.reply is not None
        reply = decode_reply(asked.reply.header, FetchReply)
        self._fetcher.take(reply, asked.reply.payload, asked.request, asked.generations, time.monotonic())
        self._ask()

    def _ask(self) -> None:
        request = self._fetcher.request(time.monotonic())
        if request is None or self._link is None:
            return
        deadline = time.monotonic() + request.max_wait_ms / 1000 + ANSWER_SECONDS
        asked = _Asked(request, self._fetcher.generations(), deadline)

        def take(reply: Reply) -> None:
            asked.reply = reply

        asked.request_id = self._link.send(request, on_reply=take, timeout=ANSWER_SECONDS)
        self._asked = asked

    def _reconnect(self, timeout: float, cause: SeglogError, attempt: int) -> None:
        if attempt:
            time.sleep(max(0.0, min(timeout, backoff_seconds(attempt - 1))))
        if timeout <= 0:
            raise cause
        self._disconnect()
        self._link = self._dialer.dial(timeout)

    def _tell_gaps(self) -> None:
        met = self._fetcher.met
        while met:
            gap = met.popleft()
            if self.options.on_gap is not None:
                self.options.on_gap(gap)

    # --- Where we are -------------------------------------------------------------------------------------------------

    def positions(self) -> dict[int, int]:
        """The offset of the next record of every partition, as ``start`` takes it."""
        return {state.partition: state.position for state in self._fetcher.states.values()}

    def lag(self) -> dict[int, int]:
        """How many offsets every partition is behind the newest end that the broker has named."""
        return {s.partition: max(0, self._end_of(s) - s.position) for s in self._fetcher.states.values()}

    def _end_of(self, state: PartitionState) -> int:
        return state.durable if self.options.durable_only else state.latest

    @property
    def gaps(self) -> GapLog:
        """Offsets without a record that were met so far."""
        return self._fetcher.gaps

    # --- Moving -------------------------------------------------------------------------------------------------------

    def seek(self, place: Place) -> None:
        """Go on elsewhere: at ``{partition: offset}``, other partitions stay; or what ``start`` takes, for all.

        Takes effect with the next record; the ends to stop at stay those seen at start.
        """
        states = self._fetcher.states
        if not isinstance(place, Mapping):
            link = self._reconnected()
            place = {state.partition: state.position for state in self._begin(link, list(states), place)}
        for partition, offset in place.items():
            if partition not in states:
                raise ValueError(f"this consumer does not read partition {partition} of {self.topic}")
            if offset < 0:
                raise ValueError(f"an offset is 0 or more, not {offset}")
        for partition, offset in place.items():
            states[partition].go_to(offset)
        self._forget_asked()

    def pause(self, partitions: Iterable[int] | None = None) -> None:
        """Hand out nothing of these partitions (None: all) until ``resume``. With all paused, iteration ends."""
        for state in self._chosen(partitions):
            state.is_paused = True

    def resume(self, partitions: Iterable[int] | None = None) -> None:
        """Go on with these partitions (None: all)."""
        for state in self._chosen(partitions):
            state.is_paused = False
        self._forget_asked()

    def _chosen(self, partitions: Iterable[int] | None) -> list[PartitionState]:
        states = self._fetcher.states
        return list(states.values()) if partitions is None else [states[partition] for partition in partitions]

    def _forget_asked(self) -> None:
        """The fetch on its way may wait long at the broker for what is not wanted most now: ask anew."""
        if self._asked is not None and self._link is not None:
            self._link.abandon(self._asked.request_id)
        self._asked = None

    # --- The connection -----------------------------------------------------------------------------------------------

    def _begin(self, link: Link, partitions: Sequence[int] | None, start: Place) -> list[PartitionState]:
        options = self.options
        return begin(
            link,
            self.topic,
            partitions,
            start,
            options.until,
            follow=options.follow,
            durable_only=options.durable_only,
            timeout=self._timeout,
        )

    def _reconnected(self) -> Link:
        if self._link is None or not self._link.is_usable():
            self._disconnect()
            self._link = self._dialer.dial(self.options.reconnect_timeout)
        return self._link

    def _disconnect(self) -> None:
        link, self._link, self._asked = self._link, None, None
        if link is not None:
            link.close()

    def close(self) -> None:
        """Let go of the connection; twice is fine."""
        self._is_closed = True
        self._disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
