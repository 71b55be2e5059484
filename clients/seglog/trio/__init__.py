"""The client of seglog for programs that run on trio; the same names as in ``seglog``.

    async with seglog.trio.connect("localhost:9192") as client:
        async with client.producer("commits") as producer:
            delivery = await producer.send(b"value", key="key")
            receipt = await delivery
        async with client.consumer("commits", start="-1h") as consumer:
            async for record in consumer:
                print(record.offset, record.value)

Errors, records and receipts are those of ``seglog``. There are no timeout arguments where trio has a better way:
``with trio.fail_after(5): await delivery``. A cancelled call leaves its connection in step: the answer is dropped when
it comes, or the connection is closed where half a request was written. No exception groups come out of the ``async
with`` blocks: what was raised inside is raised outside, as it is.

Needs trio: ``pip install 'seglog[trio]'``.
"""

from seglog_protocol.extras import missing

if (_error := missing("seglog.trio", "trio")) is not None:
    raise _error

from seglog.trio.client import Client, connect
from seglog.trio.consumer import Consumer
from seglog.trio.delivery import Delivery
from seglog.trio.producer import Producer

__all__ = ["Client", "Consumer", "Delivery", "Producer", "connect"]
