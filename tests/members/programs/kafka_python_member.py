"""A member with kafka-python."""

from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaConnectionError, KafkaError
from kafka.structs import OffsetAndMetadata

from tests.members.programs.telling import HEARTBEAT_SECONDS, SESSION_SECONDS, Teller


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # it has no types
    def __init__(self, teller: Teller, consumer: KafkaConsumer) -> None:
        self._teller = teller
        self._consumer = consumer
        self.has_new = False
        """Whether partitions were assigned by the last poll."""

    def begin_where_committed(self) -> None:
        """The client keeps its position in a partition that it gets again, although others have committed more since.

        That happens where its session times out while it joins.
        """
        self.has_new = False
        for place in self._consumer.assignment():
            committed = self._consumer.committed(place)
            self._consumer.seek(place, 0 if committed is None else committed)

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.has_new = True
        metadata = self._consumer.group_metadata()
        self._teller.assigned(metadata.member_id, metadata.generation_id, [place.partition for place in assigned])

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self._teller.revoked()


def started(teller: Teller) -> KafkaConsumer:
    """A consumer, as soon as the broker is there."""
    while True:
        try:
            return KafkaConsumer(
                bootstrap_servers=teller.server,
                group_id=teller.group,
                client_id=teller.who,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                partition_assignment_strategy=[RangePartitionAssignor],
                session_timeout_ms=int(SESSION_SECONDS * 1000),
                heartbeat_interval_ms=int(HEARTBEAT_SECONDS * 1000),
                max_poll_records=20,
            )
        except KafkaError as error:
            teller.wait_for_broker(error)


def polled(teller: Teller, consumer: KafkaConsumer) -> dict[TopicPartition, list[Any]]:
    """The next records; none where the broker is away, which ``poll`` raises now and then."""
    try:
        records: dict[TopicPartition, list[Any]] = consumer.poll(timeout_ms=200)
    except KafkaConnectionError as error:
        teller.wait_for_broker(error)
        return {}
    return records


def main() -> None:
    teller = Teller()
    consumer = started(teller)
    listener = Listener(teller, consumer)
    consumer.subscribe([teller.topic], listener=listener)
    while True:
        found = polled(teller, consumer)
        if listener.has_new:
            try:
                listener.begin_where_committed()
            except KafkaError as error:
                listener.has_new = True
                teller.wait_for_broker(error)
            continue
        for place, records in found.items():
            for record in records:
                teller.handled(place.partition, record.offset)
        if teller.uncommitted:
            with teller.committing(KafkaError) as offsets:
                consumer.commit(
                    {TopicPartition(teller.topic, at): OffsetAndMetadata(to, "", -1) for at, to in offsets.items()}
                )


if __name__ == "__main__":
    main()
