"""The table is derived from Kafka's own definitions, and the stub has all of it; error codes are Kafka's."""

import ast

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from hatch_build import render_stub
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.definitions import apis, definition, message_names
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.support import REPOSITORY


def test_the_stub_has_every_class_and_field_of_the_table() -> None:
    stub = ast.parse(render_stub(REPOSITORY))
    classes = [node for node in ast.walk(stub) if isinstance(node, ast.ClassDef)]
    found = {(one.name, tuple(ast.unparse(line.target) for line in _fields(one))) for one in classes}
    for name in message_names():
        cls = getattr(messages, name)
        for one in (cls, *(getattr(cls, struct) for struct in definition(name).structs)):
            assert (one.__name__, one.__slots__) in found


def _fields(one: ast.ClassDef) -> list[ast.AnnAssign]:
    return [line for line in one.body if isinstance(line, ast.AnnAssign)]


def test_every_message_has_a_class_with_its_fields_and_structs() -> None:
    for name in message_names():
        described, cls = definition(name), getattr(messages, name)
        assert cls.__slots__ == tuple(field.name for field in described.struct.fields)
        assert (described.api_key, described.versions) == (getattr(cls, "API_KEY", None), cls.VERSIONS)
        for struct in described.structs.values():
            assert getattr(cls, struct.name).__slots__ == tuple(field.name for field in struct.fields)
    assert dir(messages) == sorted(message_names())


def test_no_message_is_found_that_the_table_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no message 'LeaderAndIsrRequest'"):
        messages.LeaderAndIsrRequest  # type: ignore[attr-defined]  # noqa: B018


def test_a_request_and_its_response_have_the_same_versions() -> None:
    for key, api in apis().items():
        request, response = definition(api.request), definition(api.response)
        assert request.api_key == response.api_key == key
        assert request.versions == response.versions == api.versions
        assert request.flexible == response.flexible == api.flexible


def test_codes_have_kafkas_names() -> None:
    ours = {code.value: code.name for code in ErrorCode if code < ErrorCode.GROUP_DELETION_FAILED}
    assert ours == {code.value: code.name.upper() for code in KioErrorCode}
    assert sorted(ours) == list(range(-1, 134))
