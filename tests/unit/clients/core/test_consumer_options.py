"""Arguments of ``consumer()`` that make no sense: each is named, with what it can be."""

import math
import re
from typing import Any

import pytest

from seglog.core.consumer_options import consumer_options, group_options
from tests.support import each_case

LIMIT = "is more than 0 s and at most 2,147,483 s, not "
KNOWN = "known are range, roundrobin, cooperative-sticky"


@each_case(
    ("wrong", "kind", "sentence"),
    [
        ({"group": 5}, TypeError, "group is text, not 5"),
        ({"group": ""}, ValueError, "group must not be empty"),
        ({"instance_id": ""}, ValueError, "instance_id must not be empty"),
        ({"instance_id": 5}, TypeError, "instance_id is text, not 5"),
        ({"session_timeout": 1e9}, ValueError, f"session_timeout {LIMIT}1000000000.0"),
        ({"session_timeout": "x"}, TypeError, "session_timeout is a number of seconds, not 'x'"),
        ({"session_timeout": math.nan}, ValueError, f"session_timeout {LIMIT}nan"),
        ({"max_poll_interval": -1}, ValueError, f"max_poll_interval {LIMIT}-1"),
        ({"auto_commit_interval": True}, TypeError, "auto_commit_interval is a number of seconds, not True"),
        ({"auto_commit": "no"}, TypeError, "auto_commit is True or False, not 'no'"),
        ({"follow": 5}, TypeError, "follow is True or False, not 5"),
        ({"on_assigned": 5}, TypeError, "on_assigned is a function or None, not 5"),
        ({"on_revoked": "print"}, TypeError, "on_revoked is a function or None, not 'print'"),
        ({"on_gap": 5}, TypeError, "on_gap is a function or None, not 5"),
        ({"assignors": "range"}, TypeError, "assignors is a sequence of names, such as ('range', 'roundrobin'), not"),
        ({"assignors": 5}, TypeError, "assignors is a sequence of names"),
        ({"assignors": ()}, ValueError, f"assignors must not be empty; {KNOWN}"),
        ({"assignors": ["range", "foo"]}, ValueError, f"assignors: there is no 'foo'; {KNOWN}"),
        ({"assignors": [["range"]]}, ValueError, f"assignors: there is no ['range']; {KNOWN}"),
        ({"assignors": ("range", "cooperative-sticky")}, ValueError, "assignors: cooperative-sticky is given alone"),
        ({"reconnect_timeout": "x"}, TypeError, "reconnect_timeout is a number of seconds, not 'x'"),
        ({"reconnect_timeout": -1}, ValueError, "reconnect_timeout is 0 s or more, not -1"),
        ({"partitions": [0]}, ValueError, "partitions does not go with group: "),
        ({"on_out_of_range": "latest"}, ValueError, "on_out_of_range does not go with group: "),
        (
            {"sesion_timeout": 9},
            TypeError,
            "consumer() has no argument 'sesion_timeout'; did you mean session_timeout?",
        ),
        ({"client_id": "me"}, TypeError, "consumer() has no argument 'client_id'"),
    ],
)
def test_a_wrong_argument_of_a_member_is_named(wrong: dict[str, Any], kind: type[Exception], sentence: str) -> None:
    given = {"group": "app"} | wrong
    with pytest.raises(kind, match=f"^{re.escape(sentence)}"):
        group_options(given.pop("group"), "me", given)


@each_case(
    ("wrong", "kind", "sentence"),
    [
        ({"session_timeout": 9}, ValueError, "session_timeout is for a consumer in a group: give group, too"),
        ({"nonsense": 1}, TypeError, "consumer() has no argument 'nonsense'"),
        ({"folow": True}, TypeError, "consumer() has no argument 'folow'; did you mean follow?"),
        ({"durable_only": "no"}, TypeError, "durable_only is True or False, not 'no'"),
        ({"on_gap": 5}, TypeError, "on_gap is a function or None, not 5"),
    ],
)
def test_a_wrong_argument_without_a_group_is_named(wrong: dict[str, Any], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(sentence)}"):
        consumer_options(wrong)
