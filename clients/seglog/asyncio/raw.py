"""Access to whole batches on asyncio: append built ones, flush partitions, fetch a range of offsets as batch bytes.

As ``seglog.raw``, with the same ``RawBatch`` and ``join``.
"""

from seglog.asynchronous.raw import append, fetch, flush
from seglog.raw import RawBatch, join

__all__ = ["RawBatch", "append", "fetch", "flush", "join"]
