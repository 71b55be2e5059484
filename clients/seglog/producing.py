"""Conversations about producers."""

import logging
from itertools import count

from seglog.batching import ProducerEpoch
from seglog.conversations import Conversation, ask, when_recovered
from seglog.dialing import backoff_seconds
from seglog_protocol.errors import DiskFullError
from seglog_protocol.messages import InitProducerReply, InitProducerRequest

_log = logging.getLogger(__name__)


def new_producer(patience_seconds: float) -> Conversation[ProducerEpoch]:
    """A new id for an idempotent producer; if the request is repeated, the first id stays unused.

    On a full disk it retries, as for records; raises DiskFullError after ``patience_seconds``.
    """

    def asked(pause: float) -> Conversation[tuple[InitProducerReply, memoryview]]:
        return ask(InitProducerRequest(), InitProducerReply, is_repeatable=True, after_seconds=pause)

    pause = waited = 0.0
    for attempt in count():
        try:
            reply, _ = yield from when_recovered(lambda more: asked(max(pause, more)))  # noqa: B023 - called at once
            return ProducerEpoch(reply.producer_id, reply.producer_epoch)
        except DiskFullError as error:
            pause = backoff_seconds(attempt)
            waited += pause
            if waited > patience_seconds:
                raise
            if attempt == 0:
                _log.warning("%s; trying again for up to %g s", error.message, patience_seconds)
    raise AssertionError("there is always another attempt")
