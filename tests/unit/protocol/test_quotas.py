"""Whom quotas are for, and what no client can have."""

import itertools
import math

import pytest

from seglog_protocol.quotas import NAME_CHARACTERS_MAX, check_entity, check_value, entity_of, entity_text

KEY = "producer_byte_rate"


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({}, "Invalid empty client quota entity"),
        ({"group": "g"}, "Unhandled client quota entity type: group"),
        ({"user": ""}, "Empty user not supported"),
        ({"user": "u", "ip": "1.2.3.4"}, "IP entity shouldnot be combined"),
        ({"ip": "300.1.1.1"}, "300.1.1.1 is not a valid IP or resolvable host"),
        ({"client-id": "c" * (NAME_CHARACTERS_MAX + 1)}, "more than 255 characters"),
    ],
)
def test_who_can_have_no_quota(names: dict[str, str | None], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_entity(entity_of(names))


@pytest.mark.parametrize(
    ("kind", "key", "value", "why"),
    [
        ("user", "nope", 1.0, "Invalid configuration key nope"),
        ("user", "connection_creation_rate", 1.0, "Invalid configuration key"),
        ("ip", KEY, 1.0, "Invalid configuration key"),
        ("user", "request_percentage", math.inf, "must be a finite number"),
        ("user", "request_percentage", 0.0, "must be greater than 0"),
        ("user", KEY, 1.5, "cannot be a fractional value"),
        ("user", KEY, 1e19, "too large for a LONG"),
        ("ip", "connection_creation_rate", 3e9, "too large for an INT"),
    ],
)
def test_what_is_no_quota(kind: str, key: str, value: float, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_value(((kind, None),), key, value)


def test_possible_ones() -> None:
    for users, ids in itertools.product(("u" * NAME_CHARACTERS_MAX, None), repeat=2):
        check_entity(entity_of({"user": users, "client-id": ids}))
    check_entity(entity_of({"ip": None}))
    check_value((("user", "u"),), "request_percentage", 0.5)
    check_value((("user", "u"),), KEY, 5.0000001)  # Kafka takes it for 5
    assert entity_text(entity_of({"user": "u", "client-id": None})) == "user u, default client-id"
