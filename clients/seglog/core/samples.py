"""The conversation about the broker's metrics."""

from collections.abc import Sequence

from seglog.core.conversations import Conversation, ask
from seglog_protocol.messages import MetricFamily, SamplesReply, SamplesRequest, decode_samples


def read_samples(families: Sequence[str]) -> Conversation[list[MetricFamily]]:
    """As ``Client.samples``, page by page; a family may come in several parts."""
    found: dict[str, MetricFamily] = {}
    after = ""
    while True:
        reply, payload = yield from ask(SamplesRequest(list(families), after), SamplesReply, is_repeatable=True)
        page = decode_samples(payload)
        for part in page:
            if part.name in found:
                found[part.name].samples.extend(part.samples)
            else:
                found[part.name] = part
        if not reply.more or not page:
            return list(found.values())
        after = page[-1].name
