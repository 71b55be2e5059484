"""The options of a consumer, alone or in a group, from the keyword arguments of ``Client.consumer`` of any face.

An error names the argument, what it can be, and what was given.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Final

from seglog.core.conversations import Conversation
from seglog.core.fetcher import FetchOptions, PartitionPosition
from seglog.core.offsets import Place, begin, check_isolation, to_moment
from seglog.core.records import ConsumerGap
from seglog.core.topics import describe_topic
from seglog.core.wrong_face import unknown_argument

SECONDS_MAX: Final = 2**31 // 1000
"""The longest time that a request can hold: some 24 days, in milliseconds of 32 bits."""

_OWN: Final = {"group", "client_id"}
"""Options that do not come as such arguments."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions(FetchOptions):
    """The options of ``Client.consumer``."""

    partitions: Sequence[int] | None = None
    start: Place | None = None
    until: Place | None = None
    on_gap: Callable[[ConsumerGap], None] | None = None

    def __post_init__(self) -> None:
        if self.on_out_of_range not in {"error", "earliest", "latest"}:
            raise ValueError(f"on_out_of_range is 'error', 'earliest' or 'latest', not {self.on_out_of_range!r}")
        for name in ("follow", "durable_only"):
            check_flag(name, getattr(self, name))
        check_callable("on_gap", self.on_gap)
        check_isolation(self.isolation)
        check_patience("reconnect_timeout", self.reconnect_timeout)

    def begin(self, topic: str) -> Conversation[list[PartitionPosition]]:
        """Look up where to start; ``start`` defaults to "earliest", with ``follow`` to "latest"."""
        start = self.start
        if start is None:
            start = "latest" if self.follow else "earliest"
        return self.places(topic, self.partitions, start)

    def places(
        self, topic: str, partitions: Sequence[int] | None, start: Place
    ) -> Conversation[list[PartitionPosition]]:
        """Look up the position of ``start`` in each partition."""
        return begin(topic, partitions, start, self.until, self)


@dataclass(frozen=True, slots=True)
class GroupOptions(ConsumerOptions):
    """The options of ``Client.consumer`` with a group."""

    group: str = ""
    client_id: str = ""
    instance_id: str | None = None
    auto_commit: bool = True
    auto_commit_interval: float = 5.0
    on_assigned: Callable[[list[int]], object] | None = None
    on_revoked: Callable[[list[int], bool], object] | None = None
    session_timeout: float = 45.0
    max_poll_interval: float = 300.0
    assignors: Sequence[str] = ("range", "roundrobin")

    def __post_init__(self) -> None:
        ConsumerOptions.__post_init__(self)
        check_text("group", self.group)
        if self.on_out_of_range != "error":
            raise ValueError(
                "on_out_of_range does not go with group: where its offset is out of range it goes on at start"
            )
        if self.partitions is not None:
            raise ValueError("partitions does not go with group: a member reads the partitions that it is assigned")
        if self.instance_id is not None:
            check_text("instance_id", self.instance_id)
        check_flag("auto_commit", self.auto_commit)
        for name in ("on_assigned", "on_revoked"):
            check_callable(name, getattr(self, name))
        for name in ("auto_commit_interval", "session_timeout", "max_poll_interval"):
            check_seconds(name, getattr(self, name))
        from seglog.core.assignors import check_assignors  # noqa: PLC0415 - with Kafka's messages

        check_assignors(self.assignors)
        if not isinstance(self.place, Mapping):
            to_moment(self.place)

    @property
    def place(self) -> Place:
        """Where to begin in a partition without a committed offset."""
        return "earliest" if self.start is None else self.start

    def begin(self, topic: str) -> Conversation[list[PartitionPosition]]:
        """No partitions yet, but the topic has to exist. Raises UnknownTopicError."""
        yield from describe_topic(topic, config=False)
        return []


def consumer_options(given: Mapping[str, Any]) -> ConsumerOptions:
    """Options without a group. TypeError for an unknown argument, ValueError for one that belongs to groups."""
    known = _names(ConsumerOptions)
    if given.keys() - known:
        of_groups = _names(GroupOptions)
        for name in given.keys() & (of_groups - known):
            raise ValueError(f"{name} is for a consumer in a group: give group, too")
        _check_known(given, of_groups)
    return ConsumerOptions(**given)


def group_options(group: str, client_id: str, given: Mapping[str, Any]) -> GroupOptions:
    """Options with a group. TypeError for an unknown argument."""
    _check_known(given, _names(GroupOptions))
    return GroupOptions(**({"follow": True} | dict(given)), group=group, client_id=client_id)


def _names(options: type[ConsumerOptions]) -> set[str]:
    return {field.name for field in fields(options)} - _OWN


def _check_known(given: Mapping[str, Any], known: Collection[str]) -> None:
    for name in given.keys() - known:
        raise unknown_argument("consumer", name, known)


def check_text(name: str, value: object) -> None:
    """Raises TypeError for what is not text, ValueError for an empty one."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is text, not {value!r}")
    if not value:
        raise ValueError(f"{name} must not be empty")


def check_flag(name: str, value: object) -> None:
    """Raises TypeError for what is neither True nor False: a text such as "no" would count as True."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {value!r}")


def check_callable(name: str, value: object) -> None:
    """Raises TypeError for what is neither None nor can be called."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} is a function or None, not {value!r}")


def check_seconds(name: str, value: object) -> None:
    """Raises TypeError for anything but a number, ValueError unless it is above 0 and at most ``SECONDS_MAX``."""
    if not 0 < _number(name, value) <= SECONDS_MAX:
        raise ValueError(f"{name} is more than 0 s and at most {SECONDS_MAX:,} s, not {value!r}")


def check_patience(name: str, value: object) -> None:
    """As ``check_seconds``, for a time that is never sent: 0 and infinity are such times, too."""
    if not _number(name, value) >= 0:
        raise ValueError(f"{name} is 0 s or more, not {value!r}")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is a number of seconds, not {value!r}")
    return float(value)
