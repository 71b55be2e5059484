"""The error table: what it promises to whoever catches, pickles or receives one of its errors."""

import copy
import pickle
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_protocol import errors
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.support import each_case

EVERY: Final = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SeglogError)
]
ON_THE_WIRE: Final = each_case("kind", errors.WIRE_ERRORS)

SHARED_CODES: Final = {
    "INVALID_REQUEST": errors.InvalidRequestError,  # also RemoteProtocolError: to the asker it is all the same
}
NEVER_SENT: Final = {
    "SeglogError",  # the root and the branches are for catching
    "ProtocolError",
    "LocalProtocolError",
    "RequestError",
    "GroupError",
    "TransactionError",
    "LogDirectoryError",  # the daemon does not start
    "UnknownCodeError",  # made of what came in
}
SENT_AS_THEIR_BASE: Final = {"UnsupportedMagicError", "DecompressionError", "TransactionalIdMissingError"}


def test_codes_are_unique_but_for_those_that_are_shared_on_purpose() -> None:
    codes = [kind.code for kind in errors.WIRE_ERRORS]
    assert {code for code in codes if codes.count(code) > 1} == SHARED_CODES.keys()
    for code, kind in SHARED_CODES.items():
        assert errors.BY_CODE[code] is kind


def test_every_error_is_sent_or_is_known_not_to_be() -> None:
    named = {kind.__name__ for kind in EVERY if not issubclass(kind, errors.ClientError)}
    assert named == {kind.__name__ for kind in errors.WIRE_ERRORS} | NEVER_SENT | SENT_AS_THEIR_BASE
    for name in SENT_AS_THEIR_BASE:
        assert issubclass(getattr(errors, name), errors.BY_CODE[getattr(errors, name).code])


def test_no_error_of_the_client_is_in_the_table() -> None:
    assert not any(issubclass(kind, errors.ClientError) for kind in errors.WIRE_ERRORS)
    assert "CLIENT" not in errors.BY_CODE


@each_case("kind", EVERY)
def test_every_error_says_what_it_means_and_which_branch_it_is_of(kind: type[errors.SeglogError]) -> None:
    assert kind.__doc__
    assert kind.__doc__ != (kind.__base__ or object).__doc__
    assert type(kind.retriable) is bool
    assert kind.code.isupper()
    branches = {errors.ProtocolError, errors.RequestError, errors.StorageError, errors.ClientError}
    assert len(branches & set(kind.__mro__)) == (0 if kind in {errors.SeglogError, errors.UnknownCodeError} else 1)


@ON_THE_WIRE
def test_every_promised_fact_has_a_default_so_that_a_peer_may_leave_it_out(kind: type[errors.SeglogError]) -> None:
    error = errors.error_from_wire({"code": kind.code, "message": "m"})
    for name in errors.promised_facts(type(error)):
        assert getattr(error, name) in ("", -1, [], range(0))


@ON_THE_WIRE
def test_no_promised_fact_hides_what_every_exception_has(kind: type[errors.SeglogError]) -> None:
    assert not errors.promised_facts(kind) & (set(dir(errors.SeglogError("m"))) | {"code", "message", "retriable"})


_EXAMPLES: Final = {str: "x", int: 7, list: ["x"], range: [7]}


def example_of(kind: type[errors.SeglogError]) -> errors.SeglogError:
    facts: dict[str, Any] = {name: _EXAMPLES[type(getattr(kind, name))] for name in errors.promised_facts(kind)}
    return kind("a sentence", **facts)


@ON_THE_WIRE
def test_every_wire_error_comes_back_with_its_facts(kind: type[errors.SeglogError]) -> None:
    error = example_of(kind)
    wire = errors.error_to_wire(error)
    assert wire == {**error.facts, "code": kind.code, "message": "a sentence", "retriable": kind.retriable}
    back = errors.error_from_wire(wire)
    assert type(back) is errors.BY_CODE[kind.code]
    assert str(back) == back.message == "a sentence"
    assert back.retriable is kind.retriable
    assert back.facts == error.facts
    for name in errors.promised_facts(type(back)):
        assert getattr(back, name) == error.facts.get(name, getattr(type(back), name))


@each_case("kind", [kind for kind in EVERY if kind is not errors.DeliveryFailed])
def test_an_error_survives_pickling_and_copying(kind: type[errors.SeglogError]) -> None:
    error = example_of(kind)
    error.retriable = not error.retriable
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(back) is kind
        assert (back.message, back.args, back.facts) == (error.message, error.args, error.facts)
        assert back.retriable is error.retriable
        assert all(getattr(back, name) == getattr(error, name) for name in errors.promised_facts(kind))


def test_retriable_is_what_this_error_says_not_what_its_kind_usually_is() -> None:
    assert errors.error_from_wire({"code": "POLICY_VIOLATION", "message": "m", "retriable": True}).retriable
    assert not errors.error_from_wire({"code": "BROKER_STOPPING", "message": "m", "retriable": False}).retriable
    assert not errors.error_from_wire({"code": "BROKER_STOPPING", "message": "m", "retriable": 1}).retriable
    refusal = errors.PolicyViolationError("too many")
    refusal.retriable = True
    assert errors.error_to_wire(refusal)["retriable"] is True
    assert not errors.PolicyViolationError.retriable


def test_the_kinds_that_are_worth_another_try() -> None:
    assert {kind for kind in errors.WIRE_ERRORS if kind.retriable} == {
        errors.CorruptBatchError,
        errors.BrokerStoppingError,
        errors.CoordinatorLoadingError,
        errors.ConcurrentTransactionsError,
        errors.CoordinatorNotAvailableError,
        errors.DiskFullError,
        errors.OutOfResourcesError,
        errors.PartitionRecoveringError,
        errors.SegmentAwaitedError,
        errors.UnstableOffsetCommitError,
    }


@pytest.mark.parametrize("retriable", [True, False])
def test_an_unknown_code_keeps_whether_to_try_again_and_everything_it_said(retriable: bool) -> None:
    wire = {"code": "NEWER", "message": "What now?", "retriable": retriable, "place": 5, "wire_code": "lie"}
    error = errors.error_from_wire(wire)
    assert type(error) is errors.UnknownCodeError
    assert error.wire_code == "NEWER"
    assert error.retriable is retriable
    assert error.facts["place"] == 5
    assert "What now?" in str(error)
    assert "NEWER" in str(error)


FORBIDDEN: Final = sorted(
    {*dir(errors.SeglogError("m")), "self", "cls", "name", "failures", "wire_code", "no identifier", ""}
)


@ON_THE_WIRE
def test_no_fact_of_a_peer_touches_anything_but_the_facts(kind: type[errors.SeglogError]) -> None:
    plain = errors.error_from_wire({"code": kind.code, "message": "m", "retriable": False})
    for name in FORBIDDEN:
        error = errors.error_from_wire({name: "evil"} | {"code": kind.code, "message": "m", "retriable": False})
        for attribute in ("kafka_code", "args", "__cause__", "__traceback__", "__doc__", "__class__"):
            assert getattr(error, attribute) == getattr(plain, attribute), name
        assert (error.code, error.message) == (kind.code, "m"), name
        assert vars(error).keys() == vars(plain).keys(), name
        assert error.retriable is False, name
        assert callable(error.with_traceback), name
        if name not in {"code", "message", "retriable"}:
            assert error.facts == {name: "evil"}, name


def test_a_local_fact_may_have_any_name_but_is_an_attribute_only_where_promised() -> None:
    error = errors.UnknownTopicError("m", topic="t", code="x", self=1, args=2)
    assert (error.topic, error.code, error.args) == ("t", "UNKNOWN_TOPIC", ("m",))
    assert errors.error_to_wire(error)["code"] == "UNKNOWN_TOPIC"
    assert {"self", "args"} <= errors.error_to_wire(error).keys()


@each_case("value", ["5", 5.0, True, None, [5], b"5"])
def test_a_promised_fact_of_another_type_is_dropped(value: Any) -> None:
    error = errors.error_from_wire({"code": "OFFSET_OUT_OF_RANGE", "message": "m", "latest": value, "earliest": 3})
    assert isinstance(error, errors.OffsetOutOfRangeError)
    assert (error.earliest, error.latest) == (3, -1)
    assert error.facts == {"earliest": 3}


@each_case("wire", [{}, {"code": "X"}, {"message": "m"}, {"code": 1, "message": "m"}, {"code": None}])
def test_an_error_without_code_or_message_is_the_brokers_error(wire: dict[str, Any]) -> None:
    assert type(errors.error_from_wire(wire)) is errors.RemoteProtocolError


ANY: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.binary(max_size=3), inner),
    max_leaves=5,
)


@given(
    code=st.sampled_from(list(errors.BY_CODE)) | ANY,
    message=st.text() | ANY,
    facts=st.dictionaries(st.text() | st.binary() | st.sampled_from(["self", "args", "latest", "field"]), ANY),
)
def test_any_error_map_gives_an_error(code: Any, message: Any, facts: dict[Any, Any]) -> None:
    error = errors.error_from_wire(facts | {"code": code, "message": message})
    assert isinstance(error, errors.SeglogError)
    assert pickle.loads(pickle.dumps(error)).facts == error.facts
    for name in errors.promised_facts(type(error)):
        fact = getattr(error, name)
        assert type(fact) in {str, int, range} or (
            type(fact) is list and len({type(item) for item in fact} - {str, int}) == 0
        )


def test_a_fact_that_is_a_list_of_something_else_than_names_is_dropped() -> None:
    wire = {"code": "NON_EMPTY_GROUP", "message": "m"}
    assert errors.error_from_wire(wire | {"members": ["a", "b"]}).members == ["a", "b"]  # type: ignore[attr-defined]
    assert errors.error_from_wire(wire | {"members": ["a", 1]}).members == []  # type: ignore[attr-defined]


def test_kafkas_numbers_are_kafkas() -> None:
    named = {kind.code: kind("").kafka_code for kind in errors.WIRE_ERRORS if kind.code in ErrorCode.__members__}
    assert named == {name: ErrorCode[name] for name in named}
    assert len(named) > 40
    assert {kind("").kafka_code for kind in (errors.UnknownTopicError, errors.UnknownPartitionError)} == {3}
    assert errors.BY_CODE["UNKNOWN_SERVER_ERROR"] is errors.UnknownServerError
