"""Conversations about producers."""

from seglog.batching import ProducerEpoch
from seglog.conversations import Conversation, ask
from seglog_protocol.messages import InitProducerReply, InitProducerRequest


def new_producer() -> Conversation[ProducerEpoch]:
    """An id for an idempotent producer; asked twice, the first one is simply never used."""
    reply, _ = yield from ask(InitProducerRequest(), InitProducerReply, is_repeatable=True)
    return ProducerEpoch(reply.producer_id, reply.producer_epoch)
