"""Conversations about permissions (ACLs) and quotas, in Kafka's own requests."""

from collections.abc import Mapping, Sequence
from typing import Final

from seglog.core.conversations import Conversation, pages
from seglog.core.kafka_requests import ask_kafka, check_kafka
from seglog_protocol.access import Rule, RuleFilter
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.acls import rule_of, with_rule
from seglog_protocol.quotas import Entity, Quotas, entity_in, parts_of

SWITCH: Final = "authorizer.class.name"
"""The broker key by which rules are in force: the name of Kafka's authorizer, or none."""

AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

_ACLS, _QUOTAS, _CONFIGS = 3, 1, 1  # versions
_BROKER, _EVERY = 4, ""  # among what has a configuration, and the name of all of them
_PER_REQUEST: Final = 1_000


def list_rules() -> Conversation[list[Rule]]:
    """All rules. Raises AuthorizationError."""
    response = yield from ask_kafka(with_rule(messages.DescribeAclsRequest, RuleFilter()), _ACLS, is_repeatable=True)
    check_kafka(response.error_code, response.error_message, "the rules")
    return [rule_of(Rule, found, acl) for found in response.resources for acl in found.acls]


def create_rules(rules: Sequence[Rule]) -> Conversation[None]:
    """Make rules; those that are there already stay. Raises the error of the first that cannot be made."""
    cls = messages.CreateAclsRequest
    for some in pages(rules, _PER_REQUEST):
        creations = [with_rule(cls.AclCreation, rule) for rule in some]
        response = yield from ask_kafka(cls(creations=creations), _ACLS, is_repeatable=True)
        for rule, result in zip(some, response.results, strict=True):
            check_kafka(result.error_code, result.error_message, f"the rule {rule}")


def delete_rules(rules: Sequence[Rule]) -> Conversation[list[Rule]]:
    """Delete rules; returns those that were there."""
    cls = messages.DeleteAclsRequest
    gone: list[Rule] = []
    for some in pages(rules, _PER_REQUEST):
        filters = [with_rule(cls.DeleteAclsFilter, rule) for rule in some]
        response = yield from ask_kafka(cls(filters=filters), _ACLS)
        for result in response.filter_results:
            check_kafka(result.error_code, result.error_message, "the rules")
            gone += [rule_of(Rule, found) for found in result.matching_acls]
    return gone


def enforce_rules(*, is_on: bool) -> Conversation[None]:
    """Put rules in force from now on, also over restarts, or go back to what the broker's file says."""
    cls = messages.IncrementalAlterConfigsRequest
    config = cls.AlterableConfig(name=SWITCH, config_operation=not is_on, value=AUTHORIZER if is_on else None)
    resource = cls.AlterConfigsResource(resource_type=_BROKER, resource_name=_EVERY, configs=[config])
    response = yield from ask_kafka(cls(resources=[resource]), _CONFIGS)
    for result in response.responses:
        check_kafka(result.error_code, result.error_message, f"the broker's {SWITCH}", key=SWITCH)


def list_quotas() -> Conversation[dict[Entity, Quotas]]:
    """All quotas of clients, by whom they are for. Raises AuthorizationError."""
    request = messages.DescribeClientQuotasRequest(components=[], strict=False)
    response = yield from ask_kafka(request, _QUOTAS, is_repeatable=True)
    check_kafka(response.error_code, response.error_message, "the quotas")
    return {entity_in(entry.entity): {each.key: each.value for each in entry.values} for entry in response.entries}


def alter_quotas(entity: Entity, values: Mapping[str, float | None]) -> Conversation[None]:
    """Set quotas of an entity; None takes one back. Raises InvalidRequestError, AuthorizationError."""
    cls = messages.AlterClientQuotasRequest
    ops = [cls.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()]
    entry = cls.EntryData(entity=parts_of(cls.EntityData, entity), ops=ops)
    response = yield from ask_kafka(cls(entries=[entry]), _QUOTAS)
    for result in response.entries:
        check_kafka(result.error_code, result.error_message, "the quotas")
