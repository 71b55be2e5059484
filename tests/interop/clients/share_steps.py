"""What a share consumer of confluent-kafka sees: ``python share_steps.py SERVER NAME``, a line a step."""

import sys
from typing import Any

from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

JOBS = 12


def consumer(server: str, topic: str, mode: str) -> Any:
    """A member of a group of the topic's name."""
    settings = {"bootstrap.servers": server, "group.id": topic, "share.acknowledgement.mode": mode}
    made = ShareConsumer(settings)
    made.subscribe([topic])
    return made


def poll(member: Any, count: int) -> list[Any]:
    """The jobs of polls until there are as many; of 0 those of one poll."""
    found: list[Any] = [*member.poll(3.0)]
    while len(found) < count:
        found += member.poll(3.0)
    return found


def counts(found: list[Any]) -> dict[int, int]:
    """How often each job was delivered."""
    return {int(message.value()): message.delivery_count() for message in sorted(found, key=lambda each: each.offset())}


def implicit(server: str, topic: str) -> str:
    """Accepted by the commit behind them."""
    with consumer(server, topic, "implicit") as member:
        told = f"{counts(poll(member, JOBS))} {[*member.commit_sync().values()]}"
    with consumer(server, topic, "implicit") as member:
        return f"{told}, then {counts(poll(member, 0))}"


def explicit(server: str, topic: str) -> str:
    """Accepted, released and rejected."""
    types = (AcknowledgeType.RELEASE, AcknowledgeType.REJECT, AcknowledgeType.ACCEPT)
    with consumer(server, topic, "explicit") as member:
        found = poll(member, JOBS)
        told = str(counts(found))
        for message in found:
            member.acknowledge(message, types[int(message.value()) % 3])
        told += f" {[*member.commit_sync().values()]}"
        found = poll(member, JOBS // 3)
        for message in found:
            member.acknowledge(message)
        return f"{told}, then {counts(found)} {[*member.commit_sync().values()]}"


def main(server: str, name: str) -> None:
    """Both."""
    admin = AdminClient({"bootstrap.servers": server})
    for step in (implicit, explicit):
        topic = f"{name}-{step.__name__}"
        admin.create_topics([NewTopic(topic, 1)])[topic].result()
        earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        group = ConfigResource(ConfigResource.Type.GROUP, topic, incremental_configs=[earliest])
        admin.incremental_alter_configs([group])[group].result()
        producer = Producer({"bootstrap.servers": server})
        for number in range(JOBS):
            producer.produce(topic, str(number))
        producer.flush()
        print(f"{step.__name__}\t{step(server, topic)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
