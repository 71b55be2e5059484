"""Fetches that a task of the connection serves: they can neither be answered at once, nor wait without a task."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.connection_task import wait_for
from seglog_broker.listeners.kafka.handlers.fetch import Fetch
from seglog_broker.listeners.kafka.responses import Responses
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_broker.listeners.sending import flush
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_protocol.errors import RequestCancelledError
from seglog_protocol.kafka import RequestHeader
from seglog_protocol.steps import in_turns_of

ERRORS_HELD_SECONDS: Final = 0.1
"""A response of nothing but errors is held for so long: some clients ask again at once, thousands of times a second."""


class SlowFetches:
    """Serves fetches of ``connection`` as long as it takes."""

    def __init__(self, broker: Broker, connection: Connection, responses: Responses) -> None:
        self._broker = broker
        self._connection = connection
        self._responses = responses

    async def serve_in_turns(self, header: RequestHeader, asked: Fetch, waiter: Waiter) -> None:
        """Serve a fetch from many partitions, some of them at a time."""
        await flush(self._connection.sender)
        await in_turns_of(asked.read(), self._broker.turn)
        if asked.has_only_errors:
            await self.send_errors(header, asked)
        else:
            await self.serve(header, asked, waiter)

    async def send_errors(self, header: RequestHeader, asked: Fetch) -> None:
        """Send a response of nothing but errors, a little later."""
        await flush(self._connection.sender)
        await self._hold_errors(asked)
        await self._responses.send(header, asked.response)

    async def serve(self, header: RequestHeader, asked: Fetch, waiter: Waiter) -> None:
        """Wait for the answer to a fetch, and send it."""
        await flush(self._connection.sender)
        fetching = partial(self._broker.fetch, asked.request, waiter)
        await self._answer(header, asked, partial(wait_for, self._connection, fetching))

    async def serve_waiting(self, header: RequestHeader, asked: Fetch, waiter: Waiter) -> None:
        """As ``serve``, for a fetch that has waited without a task."""
        await self._answer(header, asked, partial(self._broker.fetch, asked.request, waiter))

    async def _answer(
        self, header: RequestHeader, asked: Fetch, fetching: Callable[[], Awaitable[FetchAnswer | None]]
    ) -> None:
        """Wait for what ``fetching`` finds and send it; nothing if the peer leaves first."""
        try:
            answer = await fetching()
        except RequestCancelledError:
            if self._responses.stop_reason is not None:
                await self._responses.send(header, asked.empty_response())
            return
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            await self._responses.send(header, asked.failed_response(as_seglog_error(error, "Fetch")))
            return
        if answer is None:
            return
        with answer:
            await in_turns_of(asked.found(answer), self._broker.turn)
            self._broker.metrics.fetch_bytes += answer.size
            if asked.has_only_errors:
                await self._hold_errors(asked)
            await self._responses.send(header, asked.response)

    async def _hold_errors(self, asked: Fetch) -> None:
        await trio.sleep(min(ERRORS_HELD_SECONDS, asked.max_wait_ms / 1000))


async def then(serve: Callable[[], Awaitable[None]], end: Callable[[], None]) -> None:
    """``serve``, then ``end``."""
    await serve()
    end()


async def fail(error: BaseException) -> None:
    """Raise ``error`` in the task."""
    raise error
