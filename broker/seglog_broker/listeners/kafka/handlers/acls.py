"""DescribeAcls, CreateAcls, DeleteAcls: rules of access, described and altered.

DescribeAcls, CreateAcls, DeleteAcls
  1   pattern type
  2   flexible
  3   resources of type user
"""

from typing import Any, Final

from seglog_broker.listeners.kafka.context import Api, Ask, RequestContext
from seglog_broker.listeners.kafka.errors import failure_of
from seglog_broker.listeners.kafka.turns import each_outcome, in_turns
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_protocol.access import Kind, Operation, Rule, RuleFilter
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.acls import StructT, rule_of, with_rule

_Described = messages.DescribeAclsResponse
_Deleted = messages.DeleteAclsResponse


async def describe_acls(context: RequestContext, request: messages.DescribeAclsRequest) -> _Described:
    """The rules that a filter asks for, by what they are for."""
    response = _Described(error_message=None)
    resources: dict[tuple[Any, ...], _Described.DescribeAclsResource] = {}
    try:
        async for rule in in_turns(context, await context.broker.access.describe(rule_of(RuleFilter, request))):
            kind, pattern, name = key = rule[:3]
            made = _Described.DescribeAclsResource(resource_type=kind, resource_name=name, pattern_type=pattern)
            resources.setdefault(key, made).acls.append(_told(context, _Described.AclDescription, rule))
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        response.error_code, response.error_message = failure_of(error, "DescribeAcls")
        return response
    response.resources = list(resources.values())
    return response


async def create_acls(context: RequestContext, request: messages.CreateAclsRequest) -> messages.CreateAclsResponse:
    """Rules are made, each with its own result; one that is there already stays."""
    cls = messages.CreateAclsResponse
    rules = [rule_of(Rule, each) async for each in in_turns(context, request.creations)]
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
    filters = [rule_of(RuleFilter, each) async for each in in_turns(context, request.filters)]
    deleted = await each_outcome(context.broker.access.delete(filters, context.session.principal), len(filters))
    response = _Deleted()
    for found in deleted:
        result = _Deleted.DeleteAclsFilterResult(error_message=None, matching_acls=[])
        response.filter_results.append(result)
        try:
            if isinstance(found, Exception):
                raise found  # noqa: TRY301 - answered as one that comes of this filter's own answer
            async for rule in in_turns(context, found):
                matching = _told(context, _Deleted.DeleteAclsMatchingAcl, rule)
                matching.error_message = None
                result.matching_acls.append(matching)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            result.matching_acls = []
            result.error_code, result.error_message = failure_of(error, "DeleteAcls")
    return response


def _told(context: RequestContext, cls: type[StructT], rule: Rule) -> StructT:
    """A rule as a part of the response, whose memory is counted."""
    context.reserve(PART_BYTES + 2 * sum(map(len, (rule.name, rule.principal, rule.host))))
    return with_rule(cls, rule)


_ALTER: Final = Operation.ALTER, Kind.CLUSTER

APIS: Final = (
    Api(29, "DescribeAcls", range(1, 4), None, describe_acls, asks=Ask(Operation.DESCRIBE), is_carried=True),
    Api(30, "CreateAcls", range(1, 4), handle=create_acls, needs=_ALTER, is_carried=True),
    Api(31, "DeleteAcls", range(1, 4), handle=delete_acls, needs=_ALTER, is_carried=True),
)
