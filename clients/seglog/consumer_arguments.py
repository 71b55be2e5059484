"""The keyword arguments of ``Client.consumer``, of either face, as checked options."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from seglog.consuming import ConsumerOptions

if TYPE_CHECKING:
    from seglog.group_consuming import GroupOptions

_OWN: Final = {"group", "client_id"}
"""Options that do not come as such arguments."""


def consumer_options(given: Mapping[str, Any]) -> ConsumerOptions:
    """Options without a group. TypeError for an unknown argument, ValueError for one that belongs to groups."""
    known = _names(ConsumerOptions)
    if given.keys() - known:
        from seglog.group_consuming import GroupOptions  # noqa: PLC0415 - with Kafka's messages, for a mistake

        of_groups = _names(GroupOptions)
        for name in given.keys() & (of_groups - known):
            raise ValueError(f"{name} is for a consumer in a group: give group, too")
        _check_known(given, of_groups)
    return ConsumerOptions(**given)


def group_options(group: str, client_id: str, given: Mapping[str, Any]) -> "GroupOptions":
    """Options with a group. TypeError for an unknown argument."""
    from seglog.group_consuming import GroupOptions  # noqa: PLC0415 - with Kafka's messages

    _check_known(given, _names(GroupOptions))
    return GroupOptions(**({"follow": True} | dict(given)), group=group, client_id=client_id)


def _names(options: type[ConsumerOptions]) -> set[str]:
    return {field.name for field in fields(options)} - _OWN


def _check_known(given: Mapping[str, Any], known: Collection[str]) -> None:
    for name in given.keys() - known:
        from difflib import get_close_matches  # noqa: PLC0415 - as above

        hint = "".join(f"; did you mean {near}?" for near in get_close_matches(name, known, 1, 0.75))
        raise TypeError(f"consumer() has no argument {name!r}{hint}")
