from base64 import b64encode
from pathlib import Path

import pytest

import seglog
from seglog.arrow.fitting import Unfit
from seglog.arrow.registry import Registry
from seglog.arrow.values import Kind, Values
from tests.processes import free_port
from tests.support import each_case
from tests.unit.clients.arrow.schema_registry import schema_registry


def test_who_asks_is_read_from_files_and_shown_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    with schema_registry() as registry:
        monkeypatch.setenv("SEGLOG_REGISTRY_USER", "alice")
        with pytest.raises(seglog.RegistryError, match="is set without SEGLOG_REGISTRY_PASSWORD_FILE"):
            Registry(registry.url).latest("t-value", "AVRO", str)
        monkeypatch.setenv("SEGLOG_REGISTRY_PASSWORD_FILE", str(secret))
        registry.answers["/subjects/a%2Fb-value/versions/latest"] = 401
        with pytest.raises(seglog.RegistryError) as caught:
            Registry(registry.url).latest("a/b-value", "AVRO", str)
        assert str(caught.value) == f"the registry {registry.url} answers 401 (Unauthorized)"
        assert not caught.value.retriable
        monkeypatch.setenv("SEGLOG_REGISTRY_TOKEN_FILE", str(secret))
        with pytest.raises(seglog.RegistryError, match="has no AVRO schema for t-value"):
            Registry(registry.url).latest("t-value", "AVRO", str)
        said = [account for _, account in registry.asked]
        assert said == [f"Basic {b64encode(b'alice:s3cret').decode()}", "Bearer s3cret"]


@each_case(
    "kind, schema, said",
    [
        ("avro", "nothing", "Expecting value: line 1"),
        ("avro", "5", "this is no Avro schema"),
        ("protobuf", "", r"imports .\\x00., which is no name"),
    ],
)
def test_a_registered_schema_that_is_none_is_named(kind: Kind, schema: str, said: str) -> None:
    with schema_registry() as registry:
        registry.add(4, "r", "1", schemaType=kind.upper())
        references = [{"name": "\0", "subject": "r", "version": 1}]
        registry.add(5, "t-value", schema, schemaType=kind.upper(), references=references)
        with pytest.raises(seglog.RegistryError, match=f"{registry.url} has no .* schema for t-value that can.*{said}"):
            Values(kind, registry=registry.url).for_topic("t")


@each_case("kind, name", [("json", "a.ddl"), ("avro", "a.avsc"), ("protobuf", "a.proto"), ("protobuf", "a.desc")])
def test_a_file_that_is_no_schema_is_named(tmp_path: Path, kind: Kind, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\0")
    with pytest.raises(ValueError, match=rf"{name}: (no UTF-8 \(byte 0xff at 0\)|this is no set)"):
        Values(kind, tmp_path / name)


@each_case("status", [429, 500, None])
def test_a_registry_that_cannot_answer_now_may_later(status: int | None) -> None:
    with schema_registry() as registry:
        registry.answers["/schemas/ids/5"] = status
        url = registry.url if status else f"http://127.0.0.1:{free_port()}"
        said = f"answers {status}" if status else f"the registry {url} does not answer: .*refused"
        with pytest.raises(seglog.RegistryAwayError, match=said) as caught:
            Registry(url).writer(5, "AVRO", str)
        assert caught.value.retriable


@each_case(
    "answer, said",
    [
        ([1], "Expected `object`, got `array`"),
        ({}, "missing required field `schema`"),
        ({"schema": "x", "references": [{"name": "X"}]}, "missing required field `subject`"),
    ],
)
def test_what_is_no_answer_of_a_registry_is_an_error_that_says_so(answer: object, said: str) -> None:
    with schema_registry() as registry:
        registry.answers["/schemas/ids/5"] = answer
        with pytest.raises(seglog.RegistryError, match=f"/schemas/ids/5 is no answer of .*{said}") as caught:
            Registry(registry.url).writer(5, "AVRO", str)
        assert not caught.value.retriable


def test_answers_and_references_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with schema_registry() as registry:
        found = Registry(registry.url)
        circle = {"name": "S", "subject": "s", "version": 1}
        registry.add(5, "s", '"int"', references=[circle])
        assert found.latest("s", "AVRO", lambda found: found).references == {"S": '"int"'}
        far = [{"name": str(number), "subject": f"s{number}", "version": 1} for number in range(102)]
        registry.add(6, "far", '"int"', references=far)
        for number in range(102):
            registry.add(7, f"s{number}", '"int"')
        with pytest.raises(seglog.RegistryError, match="refers to too many others"):
            found.latest("far", "AVRO", str)
        monkeypatch.setattr("seglog.arrow.registry.BYTES_MAX", 10)
        with pytest.raises(seglog.RegistryAwayError, match="its answer is longer than 10 bytes"):
            found.latest("s", "AVRO", str)


def test_a_schema_that_nobody_can_read_is_asked_for_once() -> None:
    def read(_: object) -> None:
        raise ValueError("this is none")

    with schema_registry() as registry:
        found = Registry(registry.url)
        registry.add(5, "s", "x")
        for number, said in ((5, "of schema 5, which cannot be read: this is none"), (6, "registry does not have")):
            for _ in range(2):
                with pytest.raises(Unfit, match=said):
                    found.writer(number, "AVRO", read)
        assert [path for path, _ in registry.asked] == ["/schemas/ids/5", "/schemas/ids/6"]


@each_case(
    "url, said",
    [
        ("http://alice:s3cret@there", "stands in SEGLOG_REGISTRY_USER"),
        ("file:///etc/passwd", "http://HOST:PORT or https://HOST, not 'file'"),
        ("there", "not 'there'"),
    ],
)
def test_a_url_that_is_none_or_has_a_secret_is_refused(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        Registry(url)
    assert "s3cret" not in str(caught.value)
