"""The client of seglog for programs that run on asyncio; the same names as in ``seglog``.

    async with seglog.asyncio.connect("localhost:9192") as client:
        async with client.producer("commits") as producer:
            delivery = await producer.send(b"value", key="key")
            receipt = await delivery
        async with client.consumer("commits", start="-1h") as consumer:
            async for record in consumer:
                print(record.offset, record.value)

Errors, records and receipts are those of ``seglog``. Instead of timeout arguments use asyncio's:
``async with asyncio.timeout(5): await delivery``. A cancelled call leaves its connection usable: the reply is dropped
when it arrives, or the connection is closed if half a request was written. A client belongs to the loop in which its
block was entered; elsewhere, in another loop or thread or after a fork, its calls raise ClientError. Any loop with
asyncio's interface will do, such as uvloop's.
"""

from seglog.asynchronous.client import Client
from seglog.asynchronous.consumer import Consumer
from seglog.asynchronous.group_consumer import GroupConsumer
from seglog.asynchronous.producer import Delivery, Producer
from seglog.asynchronous.queue import Queue
from seglog.asynchronous.transaction import Transaction
from seglog.asyncio.connecting import connect

__all__ = ["Client", "Consumer", "Delivery", "GroupConsumer", "Producer", "Queue", "Transaction", "connect"]
