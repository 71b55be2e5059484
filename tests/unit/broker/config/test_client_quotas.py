"""Which quota counts for a client, in Kafka's order, and what no client can have."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.config.client_quotas import (
    NAME_CHARACTERS_MAX,
    Limit,
    QuotaTable,
    check_entity,
    check_value,
    entity_of,
    entity_text,
)

KEY = "producer_byte_rate"
# The eight forms, the strongest first, each with the bucket that it is counted in.
FORMS: tuple[tuple[dict[str, str | None], tuple[str, str]], ...] = (
    ({"user": "u", "client-id": "c"}, ("u", "c")),
    ({"user": "u", "client-id": None}, ("u", "c")),
    ({"user": "u"}, ("u", "")),
    ({"user": None, "client-id": "c"}, ("u", "c")),
    ({"user": None, "client-id": None}, ("u", "c")),
    ({"user": None}, ("u", "")),
    ({"client-id": "c"}, ("", "c")),
    ({"client-id": None}, ("", "c")),
)


@given(st.sets(st.integers(0, 7)), st.booleans())
def test_the_most_specific_quota_counts(made: set[int], has_id: bool) -> None:
    quotas = {entity_of({"user": "v"}): {KEY: 1.0}, entity_of({"client-id": "d"}): {KEY: 2.0}}
    quotas |= {entity_of(FORMS[form][0]): {KEY: 10.0 + form} for form in made}
    quotas[entity_of({"ip": None})] = {"connection_creation_rate": 3.0}
    table = QuotaTable(quotas)
    counting = min((form for form in made if has_id or "client-id" not in FORMS[form][0]), default=None)
    expected = None if counting is None else Limit(10.0 + counting, *FORMS[counting][1])
    assert table.limit(KEY, "u", "c" if has_id else None) == expected
    assert table.limit("consumer_byte_rate", "u", "c") is None
    assert table.addresses == {None: 3.0}


def test_an_address_has_one_form() -> None:
    assert QuotaTable({entity_of({"ip": "2001:DB8:0::1"}): {"connection_creation_rate": 1.0}}).addresses == {
        "2001:db8::1": 1.0
    }


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
        check_entity(names)


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
        check_entity({"user": users, "client-id": ids})
    check_entity({"ip": None})
    check_value((("user", "u"),), "request_percentage", 0.5)
    check_value((("user", "u"),), KEY, 5.0000001)  # Kafka takes it for 5
    assert entity_text(entity_of({"user": "u", "client-id": None})) == "user u, default client-id"
