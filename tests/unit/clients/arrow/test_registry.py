from base64 import b64encode
from pathlib import Path

import pytest

import seglog
from seglog.arrow.registry import Registry
from tests.processes import free_port
from tests.support import each_case
from tests.unit.clients.arrow.schema_registry import schema_registry


def test_who_asks_is_read_from_files_and_shown_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    with schema_registry() as registry:
        monkeypatch.setenv("SEGLOG_REGISTRY_USER", "alice")
        monkeypatch.setenv("SEGLOG_REGISTRY_PASSWORD_FILE", str(secret))
        registry.answers["/subjects/a%2Fb-value/versions/latest"] = 401
        with pytest.raises(seglog.RegistryError) as caught:
            Registry(registry.url).latest("a/b-value", "AVRO")
        assert str(caught.value) == f"the registry {registry.url} answers 401 (Unauthorized)"
        assert not caught.value.retriable
        monkeypatch.setenv("SEGLOG_REGISTRY_TOKEN_FILE", str(secret))
        with pytest.raises(seglog.RegistryError, match="has no AVRO schema for t-value"):
            Registry(registry.url).latest("t-value", "AVRO")
        said = [account for _, account in registry.asked]
        assert said == [f"Basic {b64encode(b'alice:s3cret').decode()}", "Bearer s3cret"]


@each_case("status", [429, 500, 503])
def test_a_registry_that_cannot_answer_now_may_later(status: int) -> None:
    with schema_registry() as registry:
        registry.answers["/schemas/ids/5"] = status
        with pytest.raises(seglog.RegistryAwayError, match=f"answers {status}") as caught:
            Registry(registry.url).by_id(5, "AVRO")
        assert caught.value.retriable
        registry.answers["/schemas/ids/5"] = {"schema": '"int"'}


def test_a_registry_that_is_away_is_an_error_that_passes() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(seglog.RegistryAwayError, match=f"the registry {url} does not answer: .*refused"):
        Registry(url).by_id(5, "AVRO")


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
