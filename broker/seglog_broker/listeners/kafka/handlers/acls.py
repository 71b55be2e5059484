"""DescribeAcls, CreateAcls, DeleteAcls: rules of access, described and altered.

DescribeAcls, CreateAcls, DeleteAcls
  1   pattern type
  2   flexible
  3   resources of type user
"""

from collections.abc import Iterable
from typing import Any, Final

from seglog_broker.listeners.kafka.context import Api, Ask, RequestContext
from seglog_broker.listeners.kafka.errors import failure_of
from seglog_broker.listeners.kafka.turns import each_outcome, in_turns
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_protocol.access import Kind, Operation, PatternType, Permission, Rule, RuleFilter
from seglog_protocol.kafka import messages

_Described = messages.DescribeAclsResponse
_Deleted = messages.DeleteAclsResponse


async def describe_acls(context: RequestContext, request: messages.DescribeAclsRequest) -> _Described:
    """The rules that a filter asks for, by what they are for."""
    response = _Described(error_message=None)
    resources: dict[tuple[Kind, str, PatternType], _Described.DescribeAclsResource] = {}
    try:
        async for rule in in_turns(context, await context.broker.access.describe(_filter(request))):
            context.reserve(PART_BYTES + 2 * sum(map(len, (rule.name, rule.principal, rule.host))))
            kind, name, pattern = key = rule.kind, rule.name, rule.pattern
            if key not in resources:
                resources[key] = _Described.DescribeAclsResource(
                    resource_type=kind, resource_name=name, pattern_type=pattern, acls=[]
                )
            resources[key].acls.append(_Described.AclDescription(**_entry(rule)))
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        response.error_code, response.error_message = failure_of(error, "DescribeAcls")
        return response
    response.resources = list(resources.values())
    return response


async def create_acls(context: RequestContext, request: messages.CreateAclsRequest) -> messages.CreateAclsResponse:
    """Rules are made, each with its own result; one that is there already stays."""
    cls = messages.CreateAclsResponse
    rules = [
        Rule(
            Kind(each.resource_type),
            PatternType(each.resource_pattern_type),
            each.resource_name,
            each.principal,
            each.host,
            Operation(each.operation),
            Permission(each.permission_type),
        )
        async for each in in_turns(context, request.creations)
    ]
    created = await each_outcome(context.broker.access.create(rules, context.session.principal), len(rules))
    response = cls()
    async for error in in_turns(context, created):
        result = cls.AclCreationResult(error_message=None)
        response.results.append(result)
        if error is not None:
            result.error_code, result.error_message = failure_of(error, "CreateAcls")
    return response


async def delete_acls(context: RequestContext, request: messages.DeleteAclsRequest) -> _Deleted:
    """The rules that filters ask for are deleted; each filter is answered with those that it has found."""
    filters = [_filter(each) async for each in in_turns(context, request.filters)]
    deleted = await each_outcome(context.broker.access.delete(filters, context.session.principal), len(filters))
    response = _Deleted()
    for found in deleted:
        result = _Deleted.DeleteAclsFilterResult(error_message=None, matching_acls=[])
        response.filter_results.append(result)
        try:
            async for rule in in_turns(context, _rules_of(found)):
                context.reserve(PART_BYTES + 2 * sum(map(len, (rule.name, rule.principal, rule.host))))
                result.matching_acls.append(
                    _Deleted.DeleteAclsMatchingAcl(
                        error_message=None,
                        resource_type=rule.kind,
                        resource_name=rule.name,
                        pattern_type=rule.pattern,
                        **_entry(rule),
                    )
                )
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            result.matching_acls = []
            result.error_code, result.error_message = failure_of(error, "DeleteAcls")
    return response


def _filter(asked: messages.DescribeAclsRequest | messages.DeleteAclsRequest.DeleteAclsFilter) -> RuleFilter:
    return RuleFilter(
        Kind(asked.resource_type_filter),
        PatternType(asked.pattern_type_filter),
        asked.resource_name_filter,
        asked.principal_filter,
        asked.host_filter,
        Operation(asked.operation),
        Permission(asked.permission_type),
    )


def _entry(rule: Rule) -> dict[str, Any]:
    """Who may do what, or not, by a rule, as responses have it."""
    return {
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation,
        "permission_type": rule.permission,
    }


def _rules_of(found: Iterable[Rule] | Exception) -> Iterable[Rule]:
    if isinstance(found, Exception):
        raise found
    return found


_ALTER: Final = Operation.ALTER, Kind.CLUSTER

APIS: Final = (
    Api(29, "DescribeAcls", range(1, 4), None, describe_acls, asks=Ask(Operation.DESCRIBE), is_carried=True),
    Api(30, "CreateAcls", range(1, 4), handle=create_acls, needs=_ALTER, is_carried=True),
    Api(31, "DeleteAcls", range(1, 4), handle=delete_acls, needs=_ALTER, is_carried=True),
)
