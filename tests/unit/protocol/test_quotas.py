"""Whom quotas are for, and what no client can have."""

import itertools
import math

import pytest

from seglog_protocol.quotas import NAME_CHARACTERS_MAX, check_entity, check_value, entity_of, entity_text

KEY = "producer_byte_rate"
USER = entity_of({"user": "u"})
IP = entity_of({"ip": None})


def test_who_can_have_no_quota() -> None:
    cases: list[tuple[dict[str, str | None], str]] = [
        ({}, "Invalid empty client quota entity"),
        ({"group": "g"}, "Unhandled client quota entity type: group"),
        ({"user": ""}, "Empty user not supported"),
        ({"user": "u", "ip": "1.2.3.4"}, "IP entity shouldnot be combined"),
        ({"ip": "300.1.1.1"}, "300.1.1.1 is not a valid IP or resolvable host"),
        ({"client-id": "c" * (NAME_CHARACTERS_MAX + 1)}, "more than 255 characters"),
    ]
    for names, why in cases:
        with pytest.raises(ValueError, match=why):
            check_entity(entity_of(names))


def test_what_is_no_quota() -> None:
    for entity, key, value, why in (
        (USER, "nope", 1.0, "Invalid configuration key nope"),
        (USER, "connection_creation_rate", 1.0, "Invalid configuration key"),
        (IP, KEY, 1.0, "Invalid configuration key"),
        (USER, "request_percentage", math.inf, "must be a finite number"),
        (USER, "request_percentage", 0.0, "must be greater than 0"),
        (USER, KEY, 1.5, "cannot be a fractional value"),
        (USER, KEY, 1e19, "too large for a LONG"),
        (IP, "connection_creation_rate", 3e9, "too large for an INT"),
    ):
        with pytest.raises(ValueError, match=why):
            check_value(entity, key, value)


def test_possible_ones() -> None:
    for users, ids in itertools.product(("u" * NAME_CHARACTERS_MAX, None), repeat=2):
        check_entity(entity_of({"user": users, "client-id": ids}))
    check_entity(IP)
    check_value(USER, "request_percentage", 0.5)
    check_value(USER, KEY, 5.0000001)  # Kafka takes it for 5
    assert entity_text(entity_of({"user": "u", "client-id": None})) == "user u, default client-id"
