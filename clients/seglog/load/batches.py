"""Batches of random text, from a seed: each size is built and compressed once, and then sent with another timestamp."""

import random
from base64 import b64encode
from typing import Final

from seglog.load.plan import Plan
from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.compression import Codec, compress
from seglog_protocol.messages import TopicDescription
from seglog_protocol.record_batch import HEADER_SIZE, BatchHeader, parse_header, seal_batch

_TIME_UNKNOWN: Final = 0


class Batches:
    """The batches of a plan, within the limits of its topic.

    A batch has the plan's ``batch_records``, or as many as fit into ``batch_bytes``, whichever is less, and at least
    one record.
    """

    def __init__(self, plan: Plan, topic: TopicDescription) -> None:
        self._record_size = plan.record_size
        self._codec = Codec[plan.compression.upper()]
        self._bytes_max = min(plan.batch_bytes, topic.max_message_bytes, topic.segment_bytes)
        self._random = random.Random(plan.seed)  # noqa: S311 - a load, no secret
        first = self._build(plan.batch_records)
        self.records_max: int = first[0].record_count
        self._built = {self.records_max: first}

    def make(self, records: int, timestamp: int) -> bytes:
        """A batch of so many records, all with ``timestamp`` (epoch ms)."""
        header, body = self._built.get(records) or self._built.setdefault(records, self._build(records))
        return seal_batch(header._replace(base_timestamp=timestamp, max_timestamp=timestamp), body)

    def _build(self, records: int | None) -> tuple[BatchHeader, bytes]:
        builder, has_room = BatchBuilder(), True
        while has_room and builder.record_count != records:
            value = b64encode(self._random.randbytes(self._record_size))[: self._record_size]
            has_room = builder.try_append(_TIME_UNKNOWN, None, value, size_max=self._bytes_max)
        plain = builder.build()
        header = parse_header(plain)._replace(attributes=int(self._codec))
        return header, compress(self._codec, plain[HEADER_SIZE:])
