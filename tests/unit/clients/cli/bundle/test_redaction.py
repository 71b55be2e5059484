"""Secrets are taken out of any text, and what is none stays."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.cli.bundle.archive import HIDDEN, redacted
from tests.support import each_case

SECRET = "s3cr3t-Pa55"


@each_case(
    "line",
    [
        "ssl.key.password={}",
        "ssl.key.password = {}, and more",
        '"ssl.key.password" = "{}"',
        "{{'password': '{}', 'user': 'alice'}}",
        '  "password": "{}",',
        'listener.name.x.plain.sasl.jaas.config=org.apache.PlainLoginModule required username="a" password="{}";',
        "event=login password={} user=alice",
        'SEGLOG_PASSWORD="{}"',
        "passwd: {}",
        "client_secret={}",
        '{{"access_token": "{}"}}',
        "Authorization: Bearer {}aaaa",
        "authorization=Basic {}",
        "GET /metrics bearer {}",
        "connect to https://alice:{}@idp.example/keys",
        "ssl.keystore.key={}",
        '{{"stored_key": "{}", "server_key": "{}", "salted_password": "{}"}}',
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\n{}",
        "started as: seglogd --ssl-key-password {} --data /data",
        "seglog --password {}",
        "seglog --token='{}' topic list",
        'seglog --password pa"ss,{} ping',
        '["seglog", "--password", "{}", "ping"]',
        "['seglog', '--client-secret', '{}']",
        '{{"command": "seglog --password {}"}}',
        "Cookie: session={}",
        "Cookie: theme=dark; session={}; other=1",
        'Cookie: theme="dark"; session="{}"',
        "set-cookie: id={}; HttpOnly",
        '{{"cookie": "session={}", "host": "a"}}',
        "[(b'cookie', b'session={}')]",
        "Authorization: Token {}",
        'Proxy-Authorization: Digest username="a", response="{}"',
        "X-Api-Key: {}",
        "token eyJ{}abc.eyJzdWIiOiJ4In0.sig",
    ],
)
def test_what_stands_where_secrets_stand_is_hidden(line: str) -> None:
    written = line.replace("{}", SECRET).replace("{{", "{").replace("}}", "}")
    assert SECRET not in redacted(written)
    assert HIDDEN in redacted(written)


@each_case(
    "line",
    [
        'ssl.keystore.location="/etc/seglog/broker.pem"',
        "seglog.http.token.file=/etc/seglog/token",
        "password_file=/run/secrets/password",
        "sasl.oauthbearer.jwks.endpoint.url=https://idp.example/keys",
        "give --password-file /run/secrets/password, or --token-file=/etc/token",
        '{"authorization": null, "cookie": {}}',
        '{"token": null, "password": true}',
        "sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN",
        "the password was wrong for User:alice",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        '"ssl.key.password": {"value": "[hidden]", "origin": "file"}',
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert redacted(line) == line


@given(st.text(min_size=4), st.text(), st.text())
def test_what_is_known_to_be_a_secret_is_nowhere(secret: str, before: str, behind: str) -> None:
    plain = f"{before}{secret}{behind}"
    if secret in HIDDEN:
        return
    for text in (plain, json.dumps(plain), json.dumps(plain, ensure_ascii=False)):
        gone = redacted(text, [secret]).replace(HIDDEN, "\0")
        assert secret not in gone


@pytest.mark.parametrize("line", ["seglog --password {}", "Cookie: a={}; b=c", "Authorization: Token {}"])
def test_json_stays_json_around_a_line_of_somebody_else(line: str) -> None:
    written = json.dumps({"message": line.format(SECRET), "level": "info"})
    shown = json.loads(redacted(written))
    assert shown["level"] == "info"
    assert SECRET not in shown["message"]


def test_json_stays_json() -> None:
    value = {"config": {"ssl.key.password": {"value": SECRET, "origin": "file"}}, "password": SECRET, "token": 1234}
    shown = json.loads(redacted(json.dumps({**value, "token": SECRET}, indent=2)))
    assert shown["password"] == shown["token"] == HIDDEN


@each_case(
    "text",
    [
        "a" * 250_000,
        "password" * 31_000,
        ".-" * 125_000,
        "://" * 75_000,
        "cookie" * 40_000,
        "eyJ" * 75_000,
        "--" * 125_000,
        "--a " * 62_000,
    ],
)
def test_long_lines_take_time_in_proportion(text: str) -> None:
    """A quarter of a megabyte takes well below the time that a quadratic pattern would: a third of a minute."""
    began = time.process_time()
    redacted(text)
    assert time.process_time() - began < 5
