"""Conversations about producers."""

from seglog.batching import ProducerEpoch
from seglog.conversations import Conversation, ask, when_recovered
from seglog_protocol.messages import InitProducerReply, InitProducerRequest


def new_producer() -> Conversation[ProducerEpoch]:
    """An id for an idempotent producer; asked twice, the first one is simply never used."""

    def asked(pause: float) -> Conversation[tuple[InitProducerReply, memoryview]]:
        return ask(InitProducerRequest(), InitProducerReply, is_repeatable=True, after_seconds=pause)

    reply, _ = yield from when_recovered(asked)
    return ProducerEpoch(reply.producer_id, reply.producer_epoch)
