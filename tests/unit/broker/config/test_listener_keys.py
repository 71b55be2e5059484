"""Keys of one listener, ``listener.name.NAME.KEY``: what it has in place of what holds for all."""

import pytest

from seglog_broker.config import BrokerConfig, load_config
from seglog_broker.config.dynamic_config import differences, taken_over
from seglog_broker.config.listener_keys import LISTENER_KEYS, parse_listener_key
from seglog_broker.config.listeners import authenticates, offered_mechanisms, served_listeners
from seglog_broker.config.report import access_lines, configuration_lines
from seglog_broker.config.sources import examine_config
from seglog_protocol.errors import InvalidConfigError
from tests.support import each_case

LISTENERS = (
    "listeners=INTERNAL://127.0.0.1:9092,EXTERNAL://0.0.0.0:9093",
    "listener.security.protocol.map=INTERNAL:SSL,EXTERNAL:SASL_SSL",
    "ssl.keystore.location=/etc/seglog/server.pem",
    "super.users=User:admin",
)
TRUSTED = "listener.name.internal.ssl.truststore.location=/etc/seglog/authority.pem"
REQUIRED = "listener.name.internal.ssl.client.auth=required"


def load(*flags: str) -> BrokerConfig:
    return load_config(None, "", {}, [*LISTENERS, *flags])[0]


def test_a_listener_has_its_own_settings_and_the_others_those_of_all() -> None:
    config = load(REQUIRED, TRUSTED, "listener.name.external.sasl.enabled.mechanisms=SCRAM-SHA-512")
    internal, external = served_listeners(config)
    assert config.of_listener("INTERNAL").ssl_client_auth == "required"
    assert config.of_listener("EXTERNAL").ssl_client_auth == config.of_listener("").ssl_client_auth == "none"
    assert config.of_listener("INTERNAL").ssl_keystore_location == "/etc/seglog/server.pem"
    assert authenticates(internal, config)
    assert offered_mechanisms(external, config) == ("SCRAM-SHA-512",)
    assert config.sasl_enabled_mechanisms == BrokerConfig().sasl_enabled_mechanisms


def test_a_reload_does_not_take_an_open_listener_for_one_of_controllers() -> None:
    old = load()
    flags = [*LISTENERS, "controller.listener.names=EXTERNAL"]
    new = load_config(None, "", {}, flags)[0]
    merged = taken_over(old, new)
    assert served_listeners(merged) == served_listeners(old)
    [difference] = [each for each in differences(old, new) if each.key == "controller.listener.names"]
    assert not difference.is_dynamic


def test_a_variable_that_is_no_key_of_a_listener_is_a_mistake() -> None:
    """Another unknown one is ignored, since it may be meant for another program; here a listener would be weaker."""
    variable = "SEGLOG_LISTENER_NAME_EXTERNAL_SSL_CLIENT_AUT"
    _, _, [mistake] = examine_config(None, "", {variable: "required"}, LISTENERS)
    assert variable in mistake.message
    assert "ssl.client.auth" in mistake.message


@each_case("key", LISTENER_KEYS)
def test_each_key_is_read_for_one_listener(key: str) -> None:
    values = {
        "ssl.keystore.type": "PEM",
        "ssl.truststore.type": "PEM",
        "ssl.client.auth": "requested",
        "ssl.enabled.protocols": "TLSv1.3",
        "sasl.enabled.mechanisms": "PLAIN",
        "connections.max.reauth.ms": "5000",
        "max.connections": "5",
        "max.connection.creation.rate": "5",
    }
    text = values.get(key, "something")
    config = load(f"listener.name.internal.{key}={text}")
    [setting] = config.listener_settings
    assert setting.name == f"listener.name.internal.{key}"
    assert setting.value in {text, (text,), int(text) if text.isdecimal() else text}
    assert getattr(config.of_listener("INTERNAL"), setting.key.attribute) == setting.value


def test_a_stronger_source_counts_before_a_weaker_one_also_for_one_listener() -> None:
    """Of a variable the end tells the key, so that a listener may have underscores in its name."""
    file = (
        'listeners = "MY_OWN://127.0.0.1:9092"\n"listener.security.protocol.map" = "MY_OWN:SASL_PLAINTEXT"\n'
        '"listener.name.My_Own.connections.max.reauth.ms" = "1m"\n"listener.name.my_own.ssl.client.auth" = "required"\n'
    )
    environ = {"SEGLOG_LISTENER_NAME_MY_OWN_CONNECTIONS_MAX_REAUTH_MS": "2m"}
    flag = "listener.name.my_own.connections.max.reauth.ms=3m"
    for variables, flags, expected in (({}, [], 60_000), (environ, [], 120_000), (environ, [flag], 180_000)):
        config, warnings = load_config(file, "seglogd.toml", variables, flags)
        assert config.of_listener("MY_OWN").connections_max_reauth_ms == expected
        assert config.of_listener("MY_OWN").ssl_client_auth == "required"
        assert not any("SEGLOG_LISTENER" in warning for warning in warnings)


@each_case(
    ("flag", "sentence"),
    [
        ("listener.name.outside.ssl.client.auth=none", "no listener is named OUTSIDE; in listeners there are EXTERNAL"),
        ("listener.name.internal.ssl.client.auth=always", "listener.name.internal.ssl.client.auth = always"),
        ("listener.name.internal.ssl.keystore.password=x", "a keystore in PEM has no password"),
        ("listener.name.internal.ssl.client.aut=none", "a listener may have these for itself: ssl.keystore.type, "),
        ("listener.name.internal.num.partitions=3", "all others hold for all listeners."),
        ("listener.name.ssl.client.auth=none", "a listener may have these for itself"),
        ("listener.name.external.plain.sasl.jaas.config=x", "accounts are not part of the configuration"),
    ],
)
def test_what_is_no_such_key_or_of_no_listener_is_refused(flag: str, sentence: str) -> None:
    """To ignore it would leave something open."""
    with pytest.raises(InvalidConfigError, match=r"listener\.name\.") as caught:
        load(flag)
    assert sentence in caught.value.message


def test_a_secret_of_a_listener_is_not_shown() -> None:
    config = load("listener.name.internal.ssl.key.password=Hunter2", REQUIRED, TRUSTED)
    examined = examine_config(None, "", {}, [*LISTENERS, "listener.name.internal.ssl.key.password=Hunter2"])
    lines = configuration_lines(examined)
    assert any(line.startswith("listener.name.internal.ssl.key.password ") for line in lines)
    assert "Hunter2" not in f"{config!r} {lines} {[own.described() for own in config.listener_settings]}"


def test_the_table_of_access_tells_what_each_listener_asks() -> None:
    lines = access_lines(load(REQUIRED, TRUSTED, "listener.name.external.sasl.enabled.mechanisms=SCRAM-SHA-512"))
    [internal] = [line for line in lines if line.startswith("INTERNAL")]
    [external] = [line for line in lines if line.startswith("EXTERNAL")]
    assert internal.endswith("whoever has a certificate")
    assert external.endswith("accounts, by SCRAM-SHA-512")


def test_a_listener_that_asks_nobody_by_its_own_setting_is_not_open_to_other_machines() -> None:
    protocols = "listener.security.protocol.map=INTERNAL:SSL,EXTERNAL:SSL"
    everyone = (protocols, "ssl.client.auth=required", "ssl.truststore.location=/etc/seglog/authority.pem")
    load(*everyone)
    with pytest.raises(InvalidConfigError, match=r"whoever reaches 0\.0\.0\.0:9093 could read"):
        load(*everyone, "listener.name.external.ssl.client.auth=requested")


def test_a_listener_without_a_certificate_of_its_own_or_of_all_is_refused() -> None:
    own = "listener.name.internal.ssl.keystore.location=/etc/seglog/internal.pem"
    rest = [flag for flag in LISTENERS if not flag.startswith("ssl.")]
    with pytest.raises(InvalidConfigError, match="EXTERNAL is to speak SASL_SSL, and there is no certificate"):
        load_config(None, "", {}, [*rest, own])
    load_config(None, "", {}, [*rest, own, own.replace("internal", "external")])


def test_a_reload_takes_what_needs_no_restart_and_tells_what_changed() -> None:
    """Also where a setting of a listener comes or goes; a listener that is not there yet waits for the restart."""
    old = load("ssl.client.auth=requested", "ssl.truststore.location=/a", "listener.name.external.ssl.client.auth=none")
    new = load(
        "listeners=INTERNAL://127.0.0.1:9092,EXTERNAL://0.0.0.0:9093,LATER://127.0.0.1:9094",
        "listener.security.protocol.map=INTERNAL:SSL,EXTERNAL:SASL_SSL,LATER:SSL",
        "ssl.client.auth=requested",
        "ssl.truststore.location=/a",
        REQUIRED,
        "listener.name.later.ssl.client.auth=required",
        "listener.name.external.sasl.enabled.mechanisms=SCRAM-SHA-512",
    )
    merged = taken_over(old, new)
    assert merged.of_listener("INTERNAL").ssl_client_auth == "required"
    assert merged.of_listener("EXTERNAL").ssl_client_auth == "requested"
    assert merged.of_listener("EXTERNAL").sasl_enabled_mechanisms == old.sasl_enabled_mechanisms
    assert merged.of_listener("LATER") is merged
    changed = [(found.key, found.old, found.new, found.is_dynamic) for found in differences(old, merged)]
    assert changed == [
        ("listener.name.external.ssl.client.auth", "none", "requested", True),
        ("listener.name.internal.ssl.client.auth", "requested", "required", True),
    ]
    waiting = [found.key for found in differences(old, new) if not found.is_dynamic]
    assert "listener.name.external.sasl.enabled.mechanisms" in waiting


def test_tables_of_toml_are_answered_with_the_whole_key() -> None:
    """And not with the key that would hold for all listeners."""
    with pytest.raises(InvalidConfigError, match=r'write "listener\.name\.internal\.ssl\.client\.auth" = '):
        load_config('listener.name.internal.ssl.client.auth = "required"', "seglogd.toml", {}, LISTENERS)


@each_case("name", ["listener.name.ssl.client.auth", "ssl.client.auth", "listener.name.a.b", "listener.name."])
def test_other_keys_are_those_of_no_listener(name: str) -> None:
    assert parse_listener_key(name) is None
