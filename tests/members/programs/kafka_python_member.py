"""A member with kafka-python."""

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from tests.members.programs.telling import HEARTBEAT_SECONDS, SESSION_SECONDS, Teller

TELLER = Teller()
CONSUMER = KafkaConsumer(
    bootstrap_servers=TELLER.server,
    group_id=TELLER.group,
    client_id=TELLER.who,
    auto_offset_reset="earliest",
    enable_auto_commit=False,
    partition_assignment_strategy=[RangePartitionAssignor],
    session_timeout_ms=int(SESSION_SECONDS * 1000),
    heartbeat_interval_ms=int(HEARTBEAT_SECONDS * 1000),
    max_poll_records=20,
)


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # it has no types
    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        metadata = CONSUMER.group_metadata()
        TELLER.assigned(metadata.member_id, metadata.generation_id, [place.partition for place in assigned])

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        TELLER.revoked([place.partition for place in revoked])


def main() -> None:
    CONSUMER.subscribe([TELLER.topic], listener=Listener())
    while True:
        for place, records in CONSUMER.poll(timeout_ms=200).items():
            for record in records:
                TELLER.handled(place.partition, record.offset)
        if TELLER.uncommitted:
            with TELLER.committing(KafkaError) as offsets:
                CONSUMER.commit(
                    {TopicPartition(TELLER.topic, at): OffsetAndMetadata(to, "", -1) for at, to in offsets.items()}
                )


if __name__ == "__main__":
    main()
