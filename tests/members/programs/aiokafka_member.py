"""A member with aiokafka.

It joins beside the program, so the listener waits until records in hand are handled and committed. None are taken while
it waits: asked for records then, aiokafka waits for the next assignment.
"""

import asyncio
from typing import Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError

from tests.members.programs.telling import HEARTBEAT_SECONDS, SESSION_SECONDS, Teller

PAUSE_SECONDS: Final = 0.02


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # it has no types
    def __init__(self, teller: Teller, consumer: AIOKafkaConsumer, working: asyncio.Lock) -> None:
        self._teller = teller
        self._consumer = consumer
        self._working = working

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        coordinator = self._consumer._coordinator  # there is no public way to ask for its generation
        self._teller.assigned(coordinator.member_id, coordinator.generation, [place.partition for place in assigned])

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        async with self._working:
            self._teller.revoked([place.partition for place in revoked])


async def started(teller: Teller, working: asyncio.Lock) -> AIOKafkaConsumer:
    """A consumer, as soon as the broker is there."""
    while True:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=teller.server,
            group_id=teller.group,
            client_id=teller.who,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[RangePartitionAssignor],
            session_timeout_ms=int(SESSION_SECONDS * 1000),
            heartbeat_interval_ms=int(HEARTBEAT_SECONDS * 1000),
        )
        consumer.subscribe([teller.topic], listener=Listener(teller, consumer, working))
        try:
            await consumer.start()
        except KafkaError as error:
            await consumer.stop()
            teller.wait_for_broker(error)
        else:
            return consumer


async def main() -> None:
    teller = Teller()
    working = asyncio.Lock()
    consumer = await started(teller, working)
    while True:
        async with working:
            if not consumer._subscription.reassignment_in_progress:
                for place, records in (await consumer.getmany(max_records=20)).items():
                    for record in records:
                        teller.handled(place.partition, record.offset)
            if teller.uncommitted:
                with teller.committing(KafkaError) as offsets:
                    await consumer.commit({TopicPartition(teller.topic, at): to for at, to in offsets.items()})
        await asyncio.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    asyncio.run(main())
