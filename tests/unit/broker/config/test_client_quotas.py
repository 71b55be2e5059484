"""Which quota counts for a client, in Kafka's order."""

from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.config.client_quotas import Limit, QuotaTable
from seglog_protocol.quotas import NAME_CHARACTERS_MAX, entity_of

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
    table = QuotaTable(quotas)
    counting = min((form for form in made if has_id or "client-id" not in FORMS[form][0]), default=None)
    expected = None if counting is None else Limit(10.0 + counting, KEY, *FORMS[counting][1])
    assert table.limit(KEY, "u", "c" if has_id else None) == expected
    assert table.limit("consumer_byte_rate", "u", "c") is None


def test_a_long_client_id_is_shortened() -> None:
    """A client may send 32 KiB of it, and its bucket is kept."""
    limit = QuotaTable({entity_of({"client-id": None}): {KEY: 1.0}}).limit(KEY, "u", "i" * 32_000)
    assert limit == Limit(1.0, KEY, "", "i" * NAME_CHARACTERS_MAX)


def test_an_address_has_one_form() -> None:
    table = QuotaTable({((("ip", "2001:DB8:0::1"),)): {"connection_creation_rate": 1.0}})
    assert table.limit_of_connections("2001:db8::1") == Limit(1.0, "connection_creation_rate", "", "2001:db8::1")
    assert table.limit_of_connections("2001:db8::2") is None
