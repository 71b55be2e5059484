"""Fetching: every reader has some partitions and one request in flight."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import trio

from seglog.core.consumer_options import ConsumerOptions
from seglog.core.fetcher import Fetcher, PartitionPosition
from seglog.core.records import FetchedBatch
from seglog.load.session import Session
from seglog.trio.client import Client
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import FetchReply

OnAnswer = Callable[[float, int], None]
"""Called with the duration of a fetch (seconds) and the bytes of batches in its reply."""
OnBatch = Callable[[FetchedBatch], None]


def deal(partitions: Sequence[int], connections: int, pipeline: int) -> list[list[list[int]]]:
    """Assignment of partitions: for each connection, the partitions of each of its readers.

    Each partition has one reader; with more connections than partitions some have several, which all read all of it.
    """
    dealt = []
    for connection in range(connections):
        own = list(partitions[connection::connections]) or [partitions[connection % len(partitions)]]
        dealt.append([own[reader::pipeline] for reader in range(min(pipeline, len(own)))])
    return dealt


class Reading:
    """The readers of a run; ``run`` returns when all are at their end."""

    def __init__(self, session: Session, options: ConsumerOptions, on_answer: OnAnswer, on_batch: OnBatch) -> None:
        self._session = session
        self._options = options
        self._on_answer = on_answer
        self._on_batch = on_batch
        self._states: dict[int, PartitionPosition] = {}

    async def find(self) -> None:
        """Look up the start and end offsets. Raises the broker's error."""
        session = self._session
        states = await session.clients[0].converse(self._options.begin(session.topic.name))
        self._states = {state.partition: state for state in states}

    async def run(self) -> None:
        """Read all partitions, over all connections."""
        session, plan = self._session, self._session.plan
        dealt = deal(sorted(self._states), plan.connections, plan.pipeline)
        async with trio.open_nursery() as nursery:
            for client, readers in zip(session.clients, dealt, strict=True):
                for partitions in readers:
                    nursery.start_soon(self._read, client, partitions)

    def _fetcher(self, partitions: list[int]) -> Fetcher:
        options = self._options
        return Fetcher(
            self._session.topic.name,
            [replace(self._states[partition]) for partition in partitions],  # a partition may have several readers
            follow=options.follow,
            size_limit=options.decompressed_batch_bytes_max,
            fetch_bytes=options.fetch_bytes,
            partition_bytes=options.partition_bytes,
        )

    async def _read(self, client: Client, partitions: list[int]) -> None:
        session = self._session
        fetcher = self._fetcher(partitions)
        attempts = 0
        while not fetcher.is_finished:
            try:
                await self._fetch(client, fetcher)
                attempts = 0
            except SeglogError as error:
                if not await session.failed(error, attempts):
                    return
                attempts += 1

    async def _fetch(self, client: Client, fetcher: Fetcher) -> None:
        began = trio.current_time()
        request = fetcher.request(began)
        if request is None:
            again = fetcher.next_fetch_at()
            await trio.sleep_until(began if again is None else again)
            return
        asked = fetcher.generations()
        reply, payload = await client.call(request, FetchReply, is_repeatable=True)
        now = trio.current_time()
        for result in reply.partitions:
            if result.error is not None and result.error.retriable:  # the fetcher asks again by itself
                self._session.count(result.error)
        fetcher.take(reply, payload, request, asked, now)
        self._on_answer(now - began, len(payload))
        while (batch := fetcher.next_batch()) is not None:
            self._on_batch(batch)
            fetcher.finish(batch)
