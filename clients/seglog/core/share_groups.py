"""Conversations about share groups (queues), in Kafka's own requests: listed, described, their settings."""

from typing import Any, Final

from seglog.core.conversations import Conversation
from seglog.core.kafka_requests import GROUP, ask_kafka, check_kafka
from seglog_protocol.kafka import messages

DEAD_LETTERS: Final = "errors.deadletterqueue.topic.name"
"""The setting with the topic of dead letters."""

_OWN: Final = 8
"""Kafka's number for a setting that is the group's own."""


def list_share_groups() -> Conversation[list[tuple[str, str]]]:
    """The names and states of all share groups, by name."""
    response = yield from ask_kafka(messages.ListGroupsRequest(types_filter=["share"]), 5, is_repeatable=True)
    return sorted((group.group_id, group.group_state) for group in response.groups)


def describe_share_group(name: str) -> Conversation[Any]:
    """A share group with its members, as Kafka describes it. Raises UnknownGroupError, AuthorizationError."""
    response = yield from ask_kafka(messages.ShareGroupDescribeRequest(group_ids=[name]), 1, is_repeatable=True)
    [group] = response.groups
    check_kafka(group.error_code, group.error_message, f"queue {name}", group=name)
    return group


def places_of(name: str) -> Conversation[list[tuple[str, int]]]:
    """The topics and partitions of a share group, in order. Raises UnknownGroupError, AuthorizationError."""
    cls = messages.DescribeShareGroupOffsetsRequest
    asked = cls(groups=[cls.DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None)])
    response = yield from ask_kafka(asked, 1, is_repeatable=True)
    [group] = response.groups
    check_kafka(group.error_code, group.error_message, f"queue {name}", group=name)
    return sorted((each.topic_name, place.partition_index) for each in group.topics for place in each.partitions)


def settings_of(name: str) -> Conversation[dict[str, tuple[str, bool]]]:
    """The settings in force for a group, each with whether it is the group's own. Raises AuthorizationError."""
    cls = messages.DescribeConfigsRequest
    resource = cls.DescribeConfigsResource(resource_type=GROUP, resource_name=name, configuration_keys=None)
    response = yield from ask_kafka(cls(resources=[resource]), 4, is_repeatable=True)
    [result] = response.results
    check_kafka(result.error_code, result.error_message, f"the settings of {name}", group=name)
    return {each.name: (each.value or "", each.config_source == _OWN) for each in result.configs}
