"""ACLs and users of a broker without an authorizer and without SCRAM, answered as Kafka answers them then."""

from collections import Counter
from typing import Final

from seglog_broker.listeners.kafka.door import Caller
from seglog_broker.listeners.kafka.errors import MESSAGE_CHARACTERS_MAX
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

NO_AUTHORIZER: Final = "No Authorizer is configured."
NO_AUTHORIZER_TO_DESCRIBE: Final = "No Authorizer is configured on the broker"
"""Kafka's own sentences: tools look at the code, people search for these."""

_User = messages.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_Altered = messages.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


def describe_acls(caller: Caller, request: messages.DescribeAclsRequest, version: int) -> messages.DescribeAclsResponse:
    """There are no ACLs."""
    del caller, request, version
    return messages.DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER_TO_DESCRIBE
    )


def create_acls(caller: Caller, request: messages.CreateAclsRequest, version: int) -> messages.CreateAclsResponse:
    """None can be made."""
    del caller, version
    result = messages.CreateAclsResponse.AclCreationResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
    )
    return messages.CreateAclsResponse(results=[result] * len(request.creations))


def delete_acls(caller: Caller, request: messages.DeleteAclsRequest, version: int) -> messages.DeleteAclsResponse:
    """None can be deleted."""
    del caller, version
    result = messages.DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER, matching_acls=[]
    )
    return messages.DeleteAclsResponse(filter_results=[result] * len(request.filters))


async def describe_users(
    caller: Caller, request: messages.DescribeUserScramCredentialsRequest, version: int
) -> messages.DescribeUserScramCredentialsResponse:
    """There are no users with SCRAM credentials."""
    del version
    response = messages.DescribeUserScramCredentialsResponse(error_message="")
    counts = Counter(user.name for user in request.users or ())
    async for name, times in in_turns(caller, counts.items()):
        code, why = ErrorCode.RESOURCE_NOT_FOUND, "Attempt to describe a user credential that does not exist"
        if times > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            why = "Cannot describe SCRAM credentials for the same user twice in a single request"
        response.results.append(
            _User(
                user=name, error_code=code, error_message=f"{why}: {name}"[:MESSAGE_CHARACTERS_MAX], credential_infos=[]
            )
        )
    return response


async def alter_users(
    caller: Caller, request: messages.AlterUserScramCredentialsRequest, version: int
) -> messages.AlterUserScramCredentialsResponse:
    """None can be made: there is no SASL that they could be used with."""
    del version
    results: dict[str, _Altered] = {}
    async for deletion in in_turns(caller, request.deletions):
        results[deletion.name] = _Altered(
            user=deletion.name,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message="Attempt to delete a user credential that does not exist",
        )
    async for upsertion in in_turns(caller, request.upsertions):
        results[upsertion.name] = _Altered(
            user=upsertion.name,
            error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            error_message="seglog has no SASL listener, so it keeps no SCRAM credentials",
        )
    return messages.AlterUserScramCredentialsResponse(results=list(results.values()))
