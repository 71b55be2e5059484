"""Which listeners are opened to whom: what is refused, and what is warned about."""

import pytest

from seglog_broker.config import BrokerConfig, all_listeners, load_config
from seglog_broker.config.listeners import is_loopback, offered_mechanisms
from seglog_protocol.errors import InvalidConfigError
from tests.support import each_case

EVERYONE = "seglog.open.to.everyone=true"
STORE = "ssl.keystore.location=/etc/seglog/server.pem"
TRUSTED = "ssl.truststore.location=/etc/seglog/authority.pem"
ADMIN = "super.users=User:admin"


def load(*flags: str) -> tuple[BrokerConfig, list[str]]:
    return load_config(None, "", {}, flags)


@each_case(
    ("host", "alone"),
    [
        *((host, True) for host in ("localhost", "LOCALHOST", "127.0.0.1", "127.9.8.7", "::1", "ip6-localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "127.0.0.1.example.org", "localhost.example.org")),
        *((host, False) for host in ("broker", "1127.0.0.1", "127.0.0", "fe80::1")),
    ],
)
def test_a_loopback_address_is_this_machine_alone(host: str, alone: bool) -> None:
    assert is_loopback(host) is alone


@each_case("key", ["seglog.listen={}0.0.0.0:9192", "listeners={}0.0.0.0:9092"])
@each_case(
    ("protocol", "flags", "way_out"),
    [
        ("PLAINTEXT", [], "Use SASL_SSL (accounts), or set"),
        ("SSL", [STORE], "Use SASL_SSL (accounts) or ssl.client.auth=required (certificates), or set"),
        ("SSL", [STORE, TRUSTED, "ssl.client.auth=requested"], "ssl.client.auth=required (certificates), or set"),
    ],
)
def test_nothing_is_open_to_other_machines_that_asks_nobody(
    key: str, protocol: str, flags: list[str], way_out: str
) -> None:
    """Neither wire is, and the sentence has the two ways out."""
    address = key.format(f"{protocol}://")
    with pytest.raises(InvalidConfigError) as caught:
        load(address, *flags)
    assert caught.value.key == key.partition("=")[0]
    assert way_out in caught.value.message
    assert "set seglog.open.to.everyone=true where the network lets in nobody else" in caught.value.message
    _, [warning] = load(address, EVERYONE, *flags)
    assert "is open to everyone who reaches 0.0.0.0:" in warning
    load(address.replace("0.0.0.0", "127.0.0.1"), *flags)


@each_case(
    "flags",
    [
        ["seglog.listen=SASL_SSL://0.0.0.0:9192", STORE],
        ["listeners=SASL_SSL://0.0.0.0:9092", STORE],
        ["listeners=SSL://0.0.0.0:9092", STORE, TRUSTED, "ssl.client.auth=required"],
        ["listeners=EXTERNAL://:9092", "listener.security.protocol.map=EXTERNAL:SASL_SSL", STORE],
    ],
)
def test_a_listener_that_asks_is_open_to_other_machines(flags: list[str]) -> None:
    _, warnings = load(ADMIN, *flags)
    assert warnings == []


@each_case(
    ("flag", "why"),
    [
        ("seglog.listen=0.0.0.0:9192", "could read, write and delete everything"),
        *(
            (f"{key}={protocol}://127.0.0.1:9191", "there is no certificate for it. Set ssl.keystore.location")
            for key in ("listeners", "seglog.listen", "seglog.http.listen")
            for protocol in (("SSL",) if "http" in key else ("SSL", "SASL_SSL"))
        ),
        ("seglog.http.listen=SASL_SSL://127.0.0.1:9193", "HTTP has no SASL_SSL, but PLAINTEXT and SSL"),
        ("seglog.http.listen=127.0.0.1:9192", "seglog.listen and seglog.http.listen have the same port, 9192"),
        ("seglog.http.listen=0.0.0.0:9092", "PLAINTEXT of listeners and seglog.http.listen have the same port, 9092"),
        ("super.users=User:admin,User:root", "a semicolon, not a comma"),  # Kafka's own users write commas
        ("super.users=User:admin, User:root", "a semicolon, not a comma"),
        ("super.users=User:CN=a,OU=b;User:x,User:y", "a semicolon, not a comma"),
        ("super.users=User: admin", "a space after User:"),
        ("super.users=User: ", "must be User:NAME, with semicolons"),
        # At 1 ms no client did anything any more, and could not take the setting back.
        *((f"connections.max.reauth.ms={ms}", f"from 1000 to {2**63 - 1}, or 0") for ms in (1, 999, -1)),
    ],
)
def test_what_would_let_in_all_or_nobody_is_refused(flag: str, why: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        load(flag)
    assert caught.value.message.startswith(flag.replace("=", " = ", 1))
    assert why in caught.value.message


def test_a_listener_needs_a_mechanism() -> None:
    flags = ["listeners=SASL_PLAINTEXT://0.0.0.0:9092", "sasl.enabled.mechanisms=PLAIN"]
    with pytest.raises(InvalidConfigError, match=r"sasl\.enabled\.mechanisms has none for it; PLAIN is offered with"):
        load(*flags)
    config, _ = load(*flags, "seglog.sasl.plain.cleartext=true")
    assert [offered_mechanisms(listener, config) for listener in all_listeners(config)] == [(), ("PLAIN",)]


def test_plain_is_offered_where_nobody_reads_along() -> None:
    config, _ = load("listeners=SASL_PLAINTEXT://0.0.0.0:1,SASL_PLAINTEXT://127.0.0.1:2,SASL_SSL://0.0.0.0:3", STORE)
    offered = [offered_mechanisms(listener, config) for listener in all_listeners(config)]
    assert ["PLAIN" in mechanisms for mechanisms in offered] == [False, False, True, True]


@each_case(
    ("flags", "warning"),
    [
        (["seglog.http.listen=0.0.0.0:9193"], "nothing says who may see /metrics and /healthz there: they answer 403"),
        (
            ["seglog.http.listen=0.0.0.0:9193", "seglog.open.to.everyone=true"],
            "seglog.http.listen shows metrics and problems to everyone who reaches 0.0.0.0:9193",
        ),
        (
            ["seglog.http.listen=0.0.0.0:9193", "seglog.http.token.file=/etc/seglog-http/token"],
            "the token of seglog.http.token.file, and what it shows, cross the network in clear; SSL://0.0.0.0:9193",
        ),
        (["listeners=SASL_PLAINTEXT://127.0.0.1:9092"], "super.users is empty, and there is a listener with"),
        (
            ["listeners=SASL_PLAINTEXT://:9092", ADMIN],
            "what is read and written crosses the network in clear; SASL_SSL",
        ),
        (
            ["listeners=SASL_PLAINTEXT://:9092", ADMIN, "seglog.sasl.plain.cleartext=true"],
            "crosses the network in clear, passwords of PLAIN included; SASL_SSL encrypts it.",
        ),
        (
            [
                *("listeners=SASL_PLAINTEXT://127.0.0.1:9092", ADMIN, "sasl.enabled.mechanisms=OAUTHBEARER"),
                "seglog.sasl.oauthbearer.unsecured=true",
            ],
            "anyone can make a token for any account. It is for tests.",
        ),
    ],
)
def test_what_leaves_something_open_or_somebody_out_is_warned_about(flags: list[str], warning: str) -> None:
    _, [found] = load(*flags)
    assert warning in found


@pytest.mark.parametrize(
    "flags", [["seglog.http.listen=127.0.0.1:9193"], ["seglog.http.listen=SSL://0.0.0.0:9193", STORE]]
)
def test_a_token_that_nobody_reads_along_is_not_warned_about(flags: list[str]) -> None:
    _, warnings = load(*flags, "seglog.http.token.file=/etc/seglog-http/token")
    assert warnings == []


UNSECURED = ["sasl.enabled.mechanisms=SCRAM-SHA-256,OAUTHBEARER", "seglog.sasl.oauthbearer.unsecured=true", ADMIN]


@pytest.mark.parametrize("address", ["seglog.listen=SASL_SSL://0.0.0.0:9192", "listeners=SASL_SSL://0.0.0.0:9092"])
def test_a_listener_that_takes_tokens_which_anyone_can_make_is_not_open_to_other_machines(address: str) -> None:
    """It asks, and believes every answer."""
    with pytest.raises(InvalidConfigError, match="could log in as any account") as caught:
        load(address, STORE, *UNSECURED)
    assert caught.value.key == "seglog.sasl.oauthbearer.unsecured"
    assert "seglog.open.to.everyone=true" in caught.value.message
    _, warnings = load(address, STORE, EVERYONE, *UNSECURED)
    assert any("is open to everyone who reaches 0.0.0.0:" in warning for warning in warnings)
    load(address.replace("0.0.0.0", "127.0.0.1"), STORE, *UNSECURED)
    load(address, STORE, *UNSECURED[1:])  # without OAUTHBEARER nobody takes them


def test_the_name_of_a_certificate_may_have_commas() -> None:
    config, _ = load("super.users=User:CN=a,OU=b,O=c d ; User:admin")
    assert config.super_users == ("User:CN=a,OU=b,O=c d", "User:admin")


@pytest.mark.parametrize("ms", [0, 1000])
def test_a_session_may_have_no_end_or_a_second(ms: int) -> None:
    assert load(f"connections.max.reauth.ms={ms}")[0].connections_max_reauth_ms == ms
