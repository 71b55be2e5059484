"""Errors as native replies: every api has one, which a client reads, and it names what was asked for."""

from typing import Any, Final

import msgspec
import pytest

from scripts.message_tables import REQUIRED, fields
from seglog_broker.testing.client_requests import error_reply
from seglog_protocol import messages
from seglog_protocol.errors import DiskFullError, SeglogError
from seglog_protocol.frames import Frame, decode_map
from seglog_protocol.messages import REQUESTS, Request, decode_reply, pack_reply
from seglog_protocol.messages.groups import CommitOffset, GroupPartition, LeavingGroupMember
from tests.support import each_case

EACH: Final[dict[str, tuple[Request, list[tuple[Any, ...]]]]] = {
    "append": (
        messages.AppendRequest([messages.AppendPartition("a", 0, 9), messages.AppendPartition("b", 1, 9)]),
        [("a", 0), ("b", 1)],
    ),
    "fetch": (messages.FetchRequest([messages.FetchPartition("a", 3, 7)]), [("a", 3)]),
    "offsets": (
        messages.OffsetsRequest([messages.OffsetsPartition("a", 0), messages.OffsetsPartition("b", None)]),
        [("a", 0), ("b", -1)],
    ),
    "truncate": (messages.TruncateRequest([messages.TruncatePartition("a", 0, 9)]), [("a", 0)]),
    "lag": (messages.LagRequest([messages.LagPartition("a", 0, 7)]), [("a", 0)]),
    "flush": (messages.FlushRequest([messages.FlushPartition("a", 0)]), [("a", 0)]),
    "leave_group": (
        messages.LeaveGroupRequest("g", [LeavingGroupMember("m"), LeavingGroupMember(None, "i")]),
        [("m", None), ("", "i")],
    ),
    "commit_offsets": (messages.CommitOffsetsRequest("g", [CommitOffset("a", 0, 7)]), [("a", 0)]),
    "committed_offsets": (messages.CommittedOffsetsRequest("g", [GroupPartition("a", 0)]), [("a", 0)]),
    "delete_groups": (messages.DeleteGroupsRequest(["g", "h"]), [("g",), ("h",)]),
    "delete_offsets": (messages.DeleteOffsetsRequest("g", [GroupPartition("a", 0)]), [("a", 0)]),
}
"""Requests that name things, and what stands in the results."""


def least(kind: type[Request]) -> Request:
    """A request with the fields that it needs."""
    values = {str: "a", int: 1, bool: True, bytes: b""}
    return kind(**{field.name: values.get(field.type, []) for field in fields(kind) if field.default is REQUIRED})


WHOLE: Final = [
    *(least(kind) for api, kind in REQUESTS.items() if api not in EACH),
    messages.CommittedOffsetsRequest("g"),
]
"""Requests that fail as a whole."""


def read(request: Request) -> Any:
    """The reply, as a client reads it; raises the error of the whole."""
    packed = pack_reply(7, error_reply(request, DiskFullError("as asked")))
    header = Frame(memoryview(packed), memoryview(b"")).header
    assert header == decode_map(packed, "header")
    reply = getattr(messages, type(request).__name__.removesuffix("Request") + "Reply")
    return decode_reply(header, reply)


@each_case("api", EACH)
def test_the_error_stands_with_each_thing_that_is_named(api: str) -> None:
    request, named = EACH[api]
    reply = read(request)
    [results] = [value for name in reply.__struct_fields__ if isinstance(value := getattr(reply, name), list) and value]
    keys = [name for name in msgspec.structs.fields(type(results[0])) if name.name in KEYS]
    assert [tuple(getattr(result, key.name) for key in keys) for result in results] == named
    assert all(isinstance(result.error, DiskFullError) for result in results)


KEYS: Final = {"topic", "partition", "group", "member_id", "instance_id"}


@each_case("request_", WHOLE, ids=[request.api for request in WHOLE])
def test_where_nothing_is_named_one_by_one_it_is_that_of_the_request(request_: Request) -> None:
    with pytest.raises(SeglogError, match="as asked") as raised:
        read(request_)
    assert isinstance(raised.value, DiskFullError)
