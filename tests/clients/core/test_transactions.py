"""The core of a transaction, answer by answer."""

import pytest

from seglog.core.transactions import TransactionCore
from seglog_protocol.errors import InvalidTransactionTimeoutError, UnsupportedApiError, UnsupportedVersionError
from seglog_protocol.messages import InitProducerRequest


def test_a_broker_without_transactions_is_told_as_that() -> None:
    """Its versions of the request, of which this is not one, are no news to whoever asks for a transaction."""
    beginning = TransactionCore("my-id", 60.0).beginning()
    assert isinstance(next(beginning).request, InitProducerRequest)
    refusal = UnsupportedVersionError("init_producer is spoken in versions 1 to 1, not 2", api="init_producer")
    with pytest.raises(UnsupportedApiError, match=r"no transactions, .* give it a newer version") as told:
        beginning.throw(refusal)
    assert told.value.__cause__ is refusal


def test_a_timeout_above_the_brokers_maximum_is_told_as_the_broker_says_it() -> None:
    beginning = TransactionCore("my-id", 60.0).beginning()
    next(beginning)
    refusal = InvalidTransactionTimeoutError("a transaction may take 1 to 1,000 ms", limit=1_000)
    with pytest.raises(InvalidTransactionTimeoutError) as told:
        beginning.throw(refusal)
    assert told.value is refusal
