"""The task that writes what is queued for the topic of a coordinator, and creates the topic for the first write."""

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import trio

from seglog_broker.coordinators.topic import LEISURE_SECONDS, StateTopic
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Scheduler
from seglog_protocol import errors
from seglog_protocol.messages import CreateTopicRequest

log = get_logger()


@dataclass(eq=False, repr=False)
class TopicWriter:
    """Writes for ``topic``."""

    topic: StateTopic
    _scheduler: Scheduler
    _create_topic: Callable[..., Awaitable[Any]]  # as TopicService does

    async def run(self) -> None:
        """Write what is queued, until cancelled; then call back for the rest with an error."""
        topic = self.topic
        try:
            while True:
                with trio.move_on_after(LEISURE_SECONDS if topic.queue else math.inf) as topic.rest:
                    await topic.wanted.wait()
                topic.wanted = trio.Event()
                while topic.queue or topic.begun is not None:
                    topic.is_writing = True
                    try:
                        await self._write_some()
                    except Exception:
                        log.exception("coordinator_write_failed", topic=topic.name)
                        topic.give_up()
                    finally:
                        topic.is_writing = False
        finally:
            topic.refuse_all(topic.not_written("the broker is stopping"))

    async def _write_some(self) -> None:
        """Append what was begun, or what fits into the batches of one request, and call back."""
        topic = self.topic
        if topic.begun is None:
            try:
                await self._create()
            except errors.SeglogError as error:
                topic.refuse_all(topic.not_written(error.message))
                return
            batches = await self._scheduler.in_turns(topic.gather())
            topic.begun = (batches, topic.begin_append(batches)) if batches else None
        if topic.begun is not None:
            (batches, pending), topic.begun = topic.begun, None
            if not pending.is_written:
                await pending.write_rest()
            topic.note_replies(batches, await pending.wait())
        topic.call_back()

    async def _create(self) -> None:
        if self.topic.exists:
            return
        wanted = self.topic.settings()
        request = CreateTopicRequest(wanted.name, partitions=wanted.partitions, config=dict(wanted.config))
        with suppress(errors.TopicExistsError):
            await self._create_topic(request, for_broker=True)
