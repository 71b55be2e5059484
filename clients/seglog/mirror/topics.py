"""Topics of the source in the target: found there, or created with the same partitions and configuration."""

import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from seglog.mirror.cluster import Cluster, Topic
from seglog.mirror.errors import MirrorError

_KEYS: Final = re.compile(r"[a-z][a-z0-9]*(?:[.-][a-z0-9]+)+")
_TIMESTAMP_TYPE: Final = "message.timestamp.type"
_CREATED_SECONDS: Final = 30.0


def described(source: Cluster, names: Collection[str]) -> dict[str, Topic]:
    """The topics to be mirrored. Raises MirrorError where one is not there."""
    found = source.topics(names)
    if absent := sorted(set(names) - found.keys()):
        known = source.topic_names()
        there = f"it has {', '.join(known[:10])}{', …' if len(known) > 10 else ''}" if known else "it has none"
        raise MirrorError(f"{source.name} has no topic {', '.join(absent)}; {there}")
    return found


def ensure_topics(
    source: Cluster, target: Cluster, topics: Mapping[str, Topic], replication: int, tell: Callable[[str], None]
) -> dict[str, Topic]:
    """The target's topics; those that are missing are created, and ``tell`` is told of what is not as in the source.

    Raises MirrorError where a topic cannot be created, or takes fewer partitions than there are.
    """
    there = target.topics(topics)
    for name, topic in topics.items():
        if name in there:
            continue
        settings = _accepted(source, target, name, topic.partitions, replication, tell)
        if why := target.create_topic(name, topic.partitions, replication, settings):
            raise MirrorError(f"{target.name} cannot create topic {name}: {why}; create it there yourself")
        tell(f"created topic {name} with {topic.partitions} partitions in {target.name}")
    found = _created(target, topics)
    for name, topic in topics.items():
        if found[name].partitions < topic.partitions:
            raise MirrorError(
                f"topic {name} has {topic.partitions} partitions in {source.name} and {found[name].partitions} in "
                f"{target.name}: add the missing ones there, then start the mirror again"
            )
        if found[name].partitions > topic.partitions:
            tell(
                f"warning: topic {name} has more partitions in {target.name}: after the switch its producers will put "
                "keys into other partitions than before"
            )
        if target.settings_of(name, own=False).get(_TIMESTAMP_TYPE) == "LogAppendTime":
            raise MirrorError(
                f"topic {name} has {_TIMESTAMP_TYPE}=LogAppendTime in {target.name}, which would replace the records' "
                "timestamps: set it to CreateTime while the mirror runs"
            )
    return found


def _created(target: Cluster, names: Collection[str]) -> dict[str, Topic]:
    """The topics, once the broker that is asked has heard of those that its controller has just created."""
    give_up = time.monotonic() + _CREATED_SECONDS
    while absent := sorted(set(names) - (found := target.topics(names)).keys()):
        if time.monotonic() > give_up:
            raise MirrorError(
                f"{target.name} has no topic {absent[0]}, although it was created: start the mirror again"
            )
        time.sleep(0.1)
    return found


def _accepted(
    source: Cluster, target: Cluster, name: str, partitions: int, replication: int, tell: Callable[[str], None]
) -> dict[str, str]:
    """The source's configuration without what the target refuses, which the target names."""
    settings = source.settings_of(name, own=True)
    if settings.pop(_TIMESTAMP_TYPE, None) == "LogAppendTime":
        tell(f"warning: topic {name} is created with {_TIMESTAMP_TYPE}=CreateTime, so that timestamps stay as they are")
    while settings and (why := target.create_topic(name, partitions, replication, settings, is_trial=True)):
        refused = next((key for key in _KEYS.findall(why) if key in settings), None)
        if refused is None:
            raise MirrorError(f"{target.name} cannot create topic {name}: {why}; create it there yourself")
        tell(f"warning: topic {name} is created without {refused}={settings.pop(refused)}: {why}")
    return settings


def check_same(side: Cluster, topics: Mapping[str, Topic], *, is_target: bool = False) -> None:
    """Raises MirrorError where a topic is not the one it was when the mirror began."""
    now = side.topics(topics)
    again = "start the mirror again: it copies the topic from its beginning"
    for name, topic in topics.items():
        if name not in now:
            advice = again if is_target else "leave it out, or delete it in the target as well"
            raise MirrorError(f"topic {name} was deleted in {side.name}; {advice}")
        if now[name].topic_id != topic.topic_id:
            advice = again if is_target else f"delete it in the target as well, then {again}"
            raise MirrorError(f"topic {name} was deleted in {side.name} and made again; {advice}")
        if now[name].partitions != topic.partitions:
            raise MirrorError(
                f"topic {name} in {side.name} had {topic.partitions} partitions when the mirror began, and has "
                f"{now[name].partitions} now: give it as many on the other side, then start the mirror again"
            )
