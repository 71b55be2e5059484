"""Configuration: Kafka's keys and ranges, sources and their order, origins, warnings, and the page made of them."""

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.config import (
    BrokerConfig,
    Effect,
    Origin,
    OriginKind,
    TopicConfig,
    load_config,
    read_config_file,
    split_address,
    validate_topic_config,
)
from seglog_broker.config.__main__ import render_document
from seglog_broker.config.broker_config import AUTHORIZERS, BROKER_KEYS, BROKER_NAMES, CONFIG_NAMES, TOPIC_DEFAULT_NAMES
from seglog_broker.config.dynamic_config import differences
from seglog_broker.config.kafka_configs import kafka_keys
from seglog_broker.config.keys import Key
from seglog_broker.config.sources import OTHER_VARIABLES, REMOVED_BROKER_KEYS, variable_of
from seglog_broker.config.topic_config import TOPIC_KEYS, TOPIC_NAMES
from seglog_broker.config.topic_overrides import BATCH_BYTES_MIN, REMOVED_TOPIC_KEYS
from seglog_broker.config.values import AddressCounts, Directory, Double, Kind, Secret, Whole, Words
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import InvalidConfigError
from seglog_protocol.quantities import reading_of, unit_of
from tests.support import each_case

ROOT = Path(__file__).resolve().parents[4]
ALL_KEYS = [*TOPIC_KEYS.values(), *BROKER_KEYS.values()]
HOUR_MS = 3_600_000


def load(
    text: str | None = None, environ: Mapping[str, str] | None = None, flags: Sequence[str] = ()
) -> tuple[BrokerConfig, list[str]]:
    return load_config(text, "seglogd.toml", environ or {}, flags)


def refused(
    text: str | None = None, environ: Mapping[str, str] | None = None, flags: Sequence[str] = ()
) -> InvalidConfigError:
    with pytest.raises(InvalidConfigError) as caught:
        load(text, environ, flags)
    return caught.value


def refused_topic(name: str, value: object) -> InvalidConfigError:
    """The refusal of one topic key."""
    with pytest.raises(InvalidConfigError) as caught:
        validate_topic_config({name: value})
    return caught.value


# --- The tables -------------------------------------------------------------------------------------------------------


def test_nothing_has_to_be_set() -> None:
    config, warnings = load()
    assert warnings == []
    assert config == BrokerConfig()
    assert config.log_dir == "./data"
    assert config.seglog_listen == "127.0.0.1:9192"
    assert config.topic_config({}) == TopicConfig()


@each_case("key", ALL_KEYS, ids=lambda key: key.name)
def test_every_default_is_valid_and_survives_being_written(key: Key) -> None:
    assert key.kind.parse(key.text(key.default)) == key.default
    assert key.kind.parse(key.default) == key.default


@each_case("key", ALL_KEYS, ids=lambda key: key.name)
def test_every_key_is_explained(key: Key) -> None:
    """Every key has a meaning and a reason to change it or one why it has no effect."""
    assert not key.note.endswith(".")
    assert bool(key.note) == (key.effect is not Effect.NOW)
    if key.effect is Effect.NEVER:
        assert key.name in kafka_keys("topic" if key.is_topic_key else "broker"), "its meaning is Kafka's"
        return
    assert key.doc.endswith(".")
    assert key.when.endswith(".")


def test_every_attribute_but_the_bookkeeping_carries_a_key() -> None:
    topic = {field.name for field in dataclasses.fields(TopicConfig)} - {"origins"}
    broker = {field.name for field in dataclasses.fields(BrokerConfig)} - {
        "origins",
        "topic_defaults",
        "listener_settings",
    }
    assert {key.attribute for key in TOPIC_KEYS.values()} == topic
    assert {key.attribute for key in BROKER_KEYS.values()} == broker


def test_one_name_has_two_meanings_only_where_apache_kafka_says_so() -> None:
    assert set(BROKER_NAMES) & set(TOPIC_DEFAULT_NAMES) == {"log.flush.scheduler.interval.ms"}


def test_no_two_keys_share_an_environment_variable() -> None:
    variables = [variable_of(name) for name in CONFIG_NAMES]
    assert len(set(variables)) == len(variables)
    assert not set(variables) & OTHER_VARIABLES


# --- Values and ranges ------------------------------------------------------------------------------------------------


@each_case("key", TOPIC_KEYS.values(), ids=lambda key: key.name)
def test_the_limits_of_a_range_are_accepted_and_their_neighbours_refused(key: Key) -> None:
    if isinstance(key.kind, Whole):
        highest = 2 ** (key.kind.bits - 1) - 1
        low = -highest - 1 if key.kind.minimum is None else key.kind.minimum
        high = highest if key.kind.maximum is None else key.kind.maximum
        for value in (low, high):
            assert key.kind.parse(str(value)) == key.kind.parse(value) == value
        for value in {low - 1, high + 1} - {key.kind.also}:
            error = refused_topic(key.name, value)
            assert f"from {low} to {high}" in error.message
            assert error.key == key.name
    elif isinstance(key.kind, Double):
        assert key.kind.parse(key.kind.minimum) == key.kind.minimum
        assert key.kind.parse(key.kind.maximum) == key.kind.maximum
        assert "from 0 to 1" in refused_topic(key.name, "1.0001").message


def test_a_description_says_of_a_value_that_it_has_no_effect() -> None:
    flags = ["broker.rack=a", "compression.type=zstd", "min.insync.replicas=2"]
    config, _ = load_config(None, "", {}, flags)
    told = {line.key: line.shortfall for line in config.describe()}
    assert (told["broker.rack"] or "").startswith("no effect here: ")
    told = {line.key: line.shortfall for line in config.topic_defaults.describe()}
    assert told["compression.type"] is None
    assert (told["min.insync.replicas"] or "").startswith("no effect here: ")
    assert told["segment.bytes"] is None
    plain = {line.key: line.shortfall for line in TopicConfig().describe()}
    assert plain["compression.type"] is None, "the broker does what the value says"
    for key in TOPIC_KEYS.values():
        if key.effect is Effect.NOW and not key.note:
            assert plain[key.name] is None
        elif key.holds is None:
            assert plain[key.name] is not None, key.name


@settings(deadline=None)
@given(st.integers(-(2**70), 2**70))
def test_a_whole_number_means_the_same_as_text_and_as_a_number(number: int) -> None:
    kind = TOPIC_KEYS["segment.bytes"].kind
    if 1024 <= number < 2**31:
        assert kind.parse(number) == kind.parse(str(number)) == kind.parse(f" {number:+d} ") == number
    else:
        for raw in (number, str(number)):
            with pytest.raises(ValueError, match="must be a whole number from 1024 to 2147483647"):
                kind.parse(raw)


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_survives_being_written(number: float) -> None:
    kind = Double()
    assert kind.parse(kind.text(number)) == kind.parse(number) == number


@settings(deadline=None)
@given(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.text())),
    st.sampled_from(ALL_KEYS),
)
def test_whatever_is_written_is_a_value_of_its_kind_or_one_sentence(raw: object, key: Key) -> None:
    try:
        value = key.kind.parse(raw)
    except ValueError as error:
        sentence = str(error)
    else:
        sentence = "must "
        assert type(value) is type(key.default)
        assert isinstance(key.kind, Secret) or key.kind.parse(key.text(value)) == value, "a secret's text hides it"
    assert sentence.startswith("must ")
    assert "\n" not in sentence


NO_NUMBERS = ["1e6", "1_000_000", "1048576.0", "", "0x100000", "\uff19" * 4, "9" * 5000, 1e6, True, None, [1]]
NO_POLICIES = ["Delete", "compact,", ",", "expire", ["compact,delete"], [1], 1, {"delete": 1}]


@each_case(
    ("name", "raw", "sentence"),
    [
        *(("segment.bytes", raw, "must be a whole number") for raw in NO_NUMBERS),
        *(("preallocate", raw, "must be true or false") for raw in ["yes", "1", 1, 0, "", None]),
        *(("cleanup.policy", raw, "must be ") for raw in NO_POLICIES),
        *(
            ("min.cleanable.dirty.ratio", raw, "must be a number from 0 to 1")
            for raw in ["nan", "inf", "-inf", "half", "0_1", "", True, None]
        ),
        ("message.timestamp.type", "createtime", "must be one of CreateTime, LogAppendTime"),
        ("compression.type", "none", "producer"),
        *(("compression.gzip.level", raw, "from 1 to 9, or -1") for raw in [-2, 0, 10]),
        ("segment.index.bytes", 23, "from 24 to"),
        *(("retention.ms", raw, "milliseconds, also written as in 7d, 12h, 30m") for raw in ["7 days", "1GiB", "7d,"]),
        ("retention.ms", "1M", "(the units are ms, s, m or min, h, d and w)"),
        ("retention.ms", -2, "from -1 to"),
        ("retention.bytes", "1.0001KiB", "must be a whole number of bytes"),
        ("segment.bytes", "1000B", "from 1024 to"),
        ("segment.bytes", "7d", "also written as in 1GiB"),
    ],
)
def test_what_is_no_value_of_a_topic_key_is_refused_with_what_would_be_one(
    name: str, raw: object, sentence: str
) -> None:
    error = refused_topic(name, raw)
    assert error.key == name
    assert sentence in error.message
    assert len(error.message) < 350, "a long value is shown in part"


NO_ADDRESSES = ["9192", ":9192", "localhost", "localhost:", "localhost:65536", "localhost:-1", "::1:9192", "", "[]:1"]


@each_case(
    ("name", "values", "sentence"),
    [
        ("seglog.listen", NO_ADDRESSES, "must be HOST:PORT"),
        ("seglog.listen", ["foo", "localhost:65536", "SSL://foo"], "for example 127.0.0.1:9192"),
        ("seglog.http.listen", ["foo", "localhost:65536", "SSL://foo"], "for example 127.0.0.1:9193"),
        (
            "advertised.listeners",
            ["PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://:9092", "PLAINTEXT://[::]:1", "PLAINTEXT://a:0"],
            "must be addresses that clients can reach",
        ),
        *((f"log.retention.{unit}", ["0"], "0 is possible for a topic only") for unit in ("ms", "minutes", "hours")),
        ("log.roll.hours", ["0"], "from 1 to"),
        ("log.retention.hours", ["90m"], "must be a whole number of hours"),
        ("log.cleaner.io.max.bytes.per.second", ["0", "-1", "0.99", "inf", "nan"], "must be a number"),  # it would stop
        ("log.cleaner.io.buffer.load.factor", ["0", "-0.9", "1.01", "0.0001"], "must be a number from"),
        ("sasl.enabled.mechanisms", ["GSSAPI,PLAIN"], "there is no GSSAPI (Kerberos) in seglog"),
        ("ssl.keystore.type", ["JKS"], "openssl pkcs12 -in KEYSTORE.p12"),
    ],
)
def test_what_is_no_value_of_a_broker_key_is_refused_with_what_would_be_one(
    name: str, values: list[str], sentence: str
) -> None:
    for value in values:
        error = refused(flags=[f"{name}={value}"])
        assert sentence in error.message
        assert error.key == name


@each_case(
    ("name", "values"),
    [
        ("log.cleaner.io.max.bytes.per.second", ["1", "1e300", "0.5e1"]),
        ("log.cleaner.io.buffer.load.factor", ["0.001", "0.9", "1"]),
        ("log.roll.jitter.hours", ["0"]),
    ],
)
def test_the_limits_of_a_broker_key_are_accepted(name: str, values: list[str]) -> None:
    for value in values:
        assert load(flags=[f"{name}={value}"])[1] == []


@each_case(
    ("name", "raw", "value"),
    [
        *(("preallocate", raw, True) for raw in ["true", " TRUE ", True]),
        ("preallocate", "False", False),
        ("cleanup.policy", "delete", ("delete",)),
        *(
            ("cleanup.policy", raw, ("compact", "delete"))
            for raw in ["compact,delete", " compact , delete ", ["compact", "delete"]]
        ),
        ("cleanup.policy", "delete,delete", ("delete",)),
        *(("cleanup.policy", raw, ()) for raw in ["", []]),
        *(("compression.gzip.level", level, level) for level in [-1, 1, 9]),
        ("segment.index.bytes", 24, 24),
        ("retention.ms", 0, 0),
        ("retention.ms", "7d", 604_800_000),
        ("retention.ms", "1d12h", 129_600_000),
        ("retention.ms", "1.5 h", 5_400_000),
        ("segment.ms", "90min", 5_400_000),
        ("retention.bytes", "1 gb", 10**9),
        ("segment.bytes", "64M", 64 << 20),
    ],
)
def test_a_value_of_a_topic_key_is_taken_as_people_write_it(name: str, raw: object, value: object) -> None:
    found = BrokerConfig().topic_config({name: raw})
    assert getattr(found, TOPIC_KEYS[name].attribute) == value
    assert type(getattr(found, TOPIC_KEYS[name].attribute)) is type(value)


@each_case("kind", [Words(), Directory()])
@each_case("raw", [["0,0"], ["a,b", "c"], [","]])
def test_a_word_of_a_list_has_no_comma_which_as_text_would_part_it(kind: Kind, raw: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        kind.parse(raw)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("127.0.0.1:9192", "127.0.0.1", 9192), ("localhost:0", "localhost", 0), ("[::1]:65535", "::1", 65535)],
)
def test_an_address_is_a_host_and_a_port(address: str, host: str, port: int) -> None:
    config, _ = load(flags=[f"seglog.listen={address}"])
    assert split_address(config.seglog_listen) == (host, port)


# --- The log directory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.dir", "log.dirs"])
def test_the_log_directory_has_two_names(name: str) -> None:
    config, warnings = load('"log.dirs" = ["/a"]', flags=[f"{name}=/srv", f"{name}=/srv/log"])
    assert config.log_dir == "/srv/log"
    assert warnings == []
    assert config.origin("log.dir") == config.origin("log.dirs") == Origin(OriginKind.FLAG, f"--set {name}")
    assert load('"log.dirs" = ["/a"]')[0].log_dir == "/a", "a list of one is none"


@pytest.mark.parametrize("text", ['"log.dirs" = "/a,/b"', '"log.dirs" = ["/a", "/b"]', '"log.dir" = "/a, /b"'])
def test_a_list_of_log_directories_is_refused_with_a_sentence(text: str) -> None:
    error = refused(text)
    assert "must name exactly one directory, not 2" in error.message
    assert error.key in {"log.dir", "log.dirs"}


@each_case("text", ['"log.dir" = ""', '"log.dirs" = []', '"log.dir" = "a\\u0000"', '"log.dir" = 5'])
def test_an_impossible_log_directory_is_refused(text: str) -> None:
    assert "must be the path of a directory" in refused(text).message


def test_log_dirs_is_the_stronger_name_in_one_source() -> None:
    config, warnings = load('"log.dir" = "/a"\n"log.dirs" = "/b"')
    assert config.log_dir == "/b"
    assert len(warnings) == 1
    assert warnings[0].startswith('log.dir (file seglogd.toml: "log.dir") has no effect beside log.dirs')


# --- Sources and origins ----------------------------------------------------------------------------------------------


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default() -> None:
    text, environ, flags = '"num.partitions" = 2', {"SEGLOG_NUM_PARTITIONS": "3"}, ["num.partitions=4"]
    steps = [
        (load(), 1, "default"),
        (load(text), 2, 'file seglogd.toml: "num.partitions"'),
        (load(text, environ), 3, "environment SEGLOG_NUM_PARTITIONS"),
        (load(text, environ, flags), 4, "flag --set num.partitions"),
    ]
    for (config, warnings), value, origin in steps:
        assert config.num_partitions == value
        assert str(config.origin("num.partitions")) == origin
        assert warnings == []


def test_a_flag_with_a_name_of_its_own_wins_and_is_called_by_it() -> None:
    config, _ = load_config(None, "", {}, ["log.dir=/a"], {"--data": ("log.dir", "/b")})
    assert (str(config.log_dir), str(config.origin("log.dir"))) == ("/b", "flag --data")


def test_a_bad_value_is_refused_even_where_a_stronger_one_hides_it() -> None:
    assert refused('"num.partitions" = 0', flags=["num.partitions=4"]).key == "num.partitions"


def test_a_refusal_says_where_the_value_was_written() -> None:
    assert refused('"num.partitions" = 0').message == (
        'num.partitions = 0 (file seglogd.toml: "num.partitions") cannot be used: '
        "it must be a whole number from 1 to 2147483647."
    )
    assert "(environment SEGLOG_NUM_PARTITIONS)" in refused(environ={"SEGLOG_NUM_PARTITIONS": "x"}).message


def test_our_own_variables_do_not_double_the_prefix() -> None:
    config, warnings = load(
        environ={"SEGLOG_LISTEN": "localhost:1", "SEGLOG_LOG_DIR": "/x", "SEGLOG_LOG_FORMAT": "json"}
    )
    assert (config.seglog_listen, config.log_dir, config.seglog_log_format) == ("localhost:1", "/x", "json")
    assert warnings == []


def test_variables_of_clients_are_no_configuration() -> None:
    environ = {
        "SEGLOG_SERVER": "elsewhere:1",
        "SEGLOG_PROFILE": "prod",
        "SEGLOG_USER": "alice",
        "SEGLOG_PASSWORD_FILE": "password",
        "SEGLOG_CA": "ca.pem",
        "SEGLOG_CONFIG": "x.toml",
        "PATH": "/bin",
        "seglog_log_dir": "lower case",
    }
    assert load(environ=environ) == (BrokerConfig(), [])


def test_any_other_variable_of_ours_is_a_warning_and_no_refusal() -> None:
    config, warnings = load(environ={"SEGLOG_LOG_DIRR": "/x", "SEGLOG_QQQQQQ": "1", "SEGLOG_SEGLOG_LISTEN": "a:1"})
    assert config == BrokerConfig()
    assert warnings == [
        f"The environment variable {variable} is not a configuration key and was ignored{hint}"
        for variable, hint in [
            ("SEGLOG_LOG_DIRR", "; did you mean SEGLOG_LOG_DIR?"),
            ("SEGLOG_QQQQQQ", "."),
            ("SEGLOG_SEGLOG_LISTEN", "; did you mean SEGLOG_LISTEN?"),
        ]
    ]


@each_case(
    ("name", "hint"),
    [
        ("num.partition", "did you mean num.partitions?"),
        ("log.retention.hour", "did you mean log.retention.hours?"),
        ("seglog.listne", "did you mean seglog.listen?"),
        ("ssl.keystore.locaton", "did you mean ssl.keystore.location?"),
        ("ssl.keystore.password", "a keystore in PEM has no password; ssl.key.password is that of the private key."),
        ("ssl.engine.factory.class", "it is Kafka's, and seglogd has no use for it: leave it out."),
        (
            "sasl.jaas.config",
            "accounts are not part of the configuration: make one by seglogd user add NAME --data DIR.",
        ),
        (
            "listener.name.sasl_ssl.plain.sasl.jaas.config",
            "accounts are not part of the configuration: make one by seglogd user add NAME --data DIR.",
        ),
        (
            "delegation.token.secret.key",
            "there are no delegation tokens in seglog: give each program an account of its own.",
        ),
        ("retention.ms", "it is a topic key, and log.retention.ms is the broker's default for it."),
        ("remote.storage.enable", "it is a topic key."),
        *((name, "it was removed in Apache Kafka 4.") for name in sorted(REMOVED_BROKER_KEYS)),
        ("zzzzzzzz", "docs/CONFIG.md lists the known keys."),
    ],
)
def test_an_unknown_broker_key_is_refused_with_what_was_meant(name: str, hint: str) -> None:
    for error in (refused(flags=[f"{name}=1"]), refused(f'"{name}" = 1')):
        assert error.message.endswith(hint)
        assert error.key == name


@each_case(
    ("text", "key"),
    [
        ('log.dir = "/x"', "log.dir"),
        ('[log]\ndir = "/x"', "log.dir"),
        ("log.retention.check.interval.ms = 5", "log.retention.check.interval.ms"),
        ('[seglog]\nlisten = "a:1"', "seglog.listen"),
        ('[broker]\n"num.partitions" = 3\n', "num.partitions"),
        ("[broker]\nnum.partitions = 3\n", "num.partitions"),
        ("[num]\npartitions = 3\n", "num.partitions"),
    ],
)
def test_a_table_is_refused_with_the_key_as_it_must_be_written(text: str, key: str) -> None:
    error = refused(text)
    assert f'write "{key}" = ... at the top of the file' in error.message
    assert '"broker.' not in error.message


def test_a_table_without_a_known_key_is_refused_with_what_a_file_holds() -> None:
    assert "the file may hold no tables: keys are written in quotes at its top" in refused("[broker]\nx = 3\n").message


def test_an_empty_table_and_broken_toml_are_refused_with_a_sentence() -> None:
    assert "must be a value, not a table" in refused("[log]").message
    assert refused('"log.dir" = ').message.startswith("seglogd.toml is not valid TOML: ")
    assert refused(f'"num.partitions" = {"9" * 5000}').message.startswith("seglogd.toml is not valid TOML: ")
    assert refused('"log.dir" = "a"\n"log.dir" = "b"').message.startswith("seglogd.toml is not valid TOML: ")


@each_case("flag", ["log.dir", "=x", "", "log.dir:/x"])
def test_a_flag_without_a_key_and_a_value_is_refused(flag: str) -> None:
    assert "write --set key=value" in refused(flags=[flag]).message


def test_a_flag_is_split_at_its_first_equals_sign() -> None:
    assert load(flags=["log.dir=/a=b"])[0].log_dir == "/a=b"


@settings(deadline=None)
@given(st.text())
def test_any_file_is_a_configuration_or_one_refusal(text: str) -> None:
    message = "."
    try:
        load(text)
    except InvalidConfigError as error:
        message = error.message
    assert message.endswith((".", "?"))


@settings(deadline=None)
@given(st.sampled_from(sorted(CONFIG_NAMES)), st.text(), st.booleans())
def test_any_value_of_any_key_is_a_configuration_or_one_refusal(name: str, value: str, in_environment: bool) -> None:
    try:
        config, _ = load(environ={variable_of(name): value}) if in_environment else load(flags=[f"{name}={value}"])
    except InvalidConfigError as error:
        blamed = error.key
    else:
        blamed = name
        assert config.origin(name).kind is (OriginKind.ENVIRONMENT if in_environment else OriginKind.FLAG)
    assert blamed == name


def test_a_configuration_file_that_cannot_be_read_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="cannot be read: No such file or directory"):
        read_config_file(str(tmp_path / "none.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidConfigError, match="is not UTF-8 text"):
        read_config_file(str(tmp_path / "bytes.toml"))


# --- Defaults for topics ----------------------------------------------------------------------------------------------


@each_case(
    ("settings", "retention_ms"),
    [
        (["log.retention.hours=2"], 2 * HOUR_MS),
        (["log.retention.hours=2", "log.retention.minutes=3"], 180_000),
        (["log.retention.hours=2", "log.retention.minutes=3", "log.retention.ms=4"], 4),
        (["log.retention.hours=-1"], -1),
        (["log.retention.minutes=-7"], -1),
        (["log.retention.ms=-9223372036854775808"], -1),
        (["log.retention.hours=2147483647"], 2_147_483_647 * HOUR_MS),
    ],
)
def test_broker_retention_takes_the_strongest_name_in_its_own_unit(settings: list[str], retention_ms: int) -> None:
    config, _ = load(flags=settings)
    assert config.topic_config({}).retention_ms == retention_ms


def test_a_weaker_name_in_the_same_source_is_set_in_vain() -> None:
    _, warnings = load(flags=["log.roll.hours=2", "log.roll.ms=5"])
    (warning,) = warnings
    assert warning.startswith("log.roll.hours (flag --set log.roll.hours) has no effect beside log.roll.ms, which is")
    assert load(flags=["log.roll.hours=2", f"log.roll.ms={2 * HOUR_MS}"])[1] == []


def test_a_stronger_source_counts_before_a_stronger_name() -> None:
    config, _ = load('"log.roll.ms" = 5', environ={"SEGLOG_LOG_ROLL_HOURS": "1"})
    assert config.topic_config({}).segment_ms == HOUR_MS
    assert str(config.origin("log.roll.ms")) == "environment SEGLOG_LOG_ROLL_HOURS"


def test_the_flush_scheduler_is_a_key_of_its_own_and_a_default_of_flush_ms() -> None:
    config, warnings = load(flags=["log.flush.scheduler.interval.ms=5"])
    assert config.log_flush_scheduler_interval_ms == config.topic_config({}).flush_ms == 5
    assert warnings == []
    config, warnings = load(flags=["log.flush.scheduler.interval.ms=5", "log.flush.interval.ms=6"])
    assert (config.log_flush_scheduler_interval_ms, config.topic_config({}).flush_ms) == (5, 6)
    assert not any("beside" in warning for warning in warnings)


@each_case("name", sorted(TOPIC_DEFAULT_NAMES))
def test_every_broker_wide_name_reaches_its_topic_key(name: str) -> None:
    key, synonym = TOPIC_DEFAULT_NAMES[name]
    text = "true" if key.kind.type_name == "boolean" else key.text(key.default)
    if isinstance(key.default, int) and not isinstance(key.default, bool):
        text = str(key.default // synonym.factor)
    config, _ = load(flags=[f"{name}={text}"])
    topic = config.topic_config({})
    assert topic.origin(key.name) == config.origin(name) == Origin(OriginKind.FLAG, f"--set {name}")
    assert key.text(getattr(topic, key.attribute)) == ("true" if text == "true" else key.text(key.default))


def test_the_description_of_a_topic_names_every_key_with_value_and_origin() -> None:
    config, _ = load(flags=["log.retention.hours=1"])
    lines = {line.key: line for line in config.topic_config({"cleanup.policy": "compact,delete"}).describe()}
    assert list(lines) == list(TOPIC_KEYS)
    assert lines["cleanup.policy"][:4] == (
        "cleanup.policy",
        "compact,delete",
        Origin(OriginKind.TOPIC, "cleanup.policy"),
        False,
    )
    assert lines["retention.ms"].value == "3600000"
    assert str(lines["retention.ms"].origin) == "flag --set log.retention.hours"
    assert lines["segment.ms"].is_default


def test_the_description_of_a_broker_is_a_configuration_that_means_the_same() -> None:
    config, _ = load(flags=["log.retention.hours=1", "log.cleanup.policy=compact", "log.dirs=/x"])
    lines = config.describe()
    again, _ = load(flags=[f"{line.key}={line.value}" for line in lines])
    assert again == config
    assert {line.key for line in lines if not line.is_default} == {"log.retention.ms", "log.cleanup.policy", "log.dir"}


# --- Topics' own values -----------------------------------------------------------------------------------------------


def test_overrides_are_kept_under_their_own_name_in_kafkas_text_form() -> None:
    kept, warnings = validate_topic_config(
        {
            "segment.ms": 9223372036854775807,
            "internal.segment.bytes": 2_000_000,
            "cleanup.policy": ["delete"],
            "min.cleanable.dirty.ratio": 1,
            "retention.ms": "-01",
            "preallocate": False,
        }
    )
    assert kept == {
        "cleanup.policy": "delete",
        "min.cleanable.dirty.ratio": "1.0",
        "preallocate": "false",
        "retention.ms": "-1",
        "segment.bytes": "2000000",
        "segment.ms": "9223372036854775807",
    }
    assert list(kept) == sorted(kept)
    assert validate_topic_config(kept) == (kept, warnings)


def test_internal_segment_bytes_is_the_stronger_name() -> None:
    for overrides in (
        {"internal.segment.bytes": 3_000_000, "segment.bytes": 2_000_000},
        {"segment.bytes": 2_000_000, "internal.segment.bytes": 3_000_000},
    ):
        kept, warnings = validate_topic_config(overrides)
        assert kept == {"segment.bytes": "3000000"}
        (warning,) = warnings
        assert warning.startswith("segment.bytes has no effect beside internal.segment.bytes, which is the stronger")
        topic = BrokerConfig().topic_config(overrides)
        assert topic.segment_bytes == 3_000_000
        assert topic.origin("internal.segment.bytes") == Origin(OriginKind.TOPIC, "internal.segment.bytes")
    assert "from 1024" in refused_topic("internal.segment.bytes", 1023).message


@pytest.mark.parametrize("size", [1024, 1_048_575])
def test_a_segment_smaller_than_kafka_allows_works_with_a_warning(size: int) -> None:
    assert validate_topic_config({"segment.bytes": 1_048_576})[1] == []
    kept, warnings = validate_topic_config({"segment.bytes": size})
    assert kept == {"segment.bytes": str(size)}
    assert warnings == [
        f"segment.bytes = {size} works here, but Apache Kafka 4 would refuse it: its smallest value is 1048576."
    ]
    assert load(flags=[f"log.segment.bytes={size}"])[1] == [f"log.{warnings[0]}"]


@each_case(
    ("name", "hint"),
    [
        ("segment.byte", "did you mean segment.bytes?"),
        ("retention_ms", "did you mean retention.ms?"),
        ("log.retention.hours", "it is the broker's default for the topic key retention.ms."),
        *((name, "it was removed in Apache Kafka 4.") for name in sorted(REMOVED_TOPIC_KEYS)),
        ("qqqqqqqq", "docs/CONFIG.md lists the known keys."),
        ("", "docs/CONFIG.md lists the known keys."),
    ],
)
def test_an_unknown_topic_key_is_refused_with_what_was_meant(name: str, hint: str) -> None:
    error = refused_topic(name, 1)
    assert error.message == f"{name} is not a topic configuration key: {hint}"
    assert error.key == name


def test_the_compaction_lags_must_go_together() -> None:
    validate_topic_config({"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 5})
    with pytest.raises(InvalidConfigError, match=r"must be at most max\.compaction\.lag\.ms, which is 5"):
        validate_topic_config({"min.compaction.lag.ms": 6, "max.compaction.lag.ms": 5})


def test_what_must_go_together_is_checked_against_the_brokers_defaults() -> None:
    config, _ = load(flags=["log.cleaner.max.compaction.lag.ms=5"])
    with pytest.raises(InvalidConfigError, match="must be at most"):
        config.validate_topic_config({"min.compaction.lag.ms": 6})
    assert (
        refused(flags=["log.cleaner.max.compaction.lag.ms=5", "log.cleaner.min.compaction.lag.ms=6"]).key
        == "min.compaction.lag.ms"
    )


def test_a_topic_still_opens_when_the_brokers_defaults_moved_since() -> None:
    config, _ = load(flags=["log.cleaner.max.compaction.lag.ms=5"])
    assert config.topic_config({"min.compaction.lag.ms": "6"}).min_compaction_lag_ms == 6


def test_every_cleaner_thread_needs_its_memory() -> None:
    load(flags=["log.cleaner.threads=2", "log.cleaner.dedupe.buffer.size=2097154"])
    error = refused(flags=["log.cleaner.threads=2", "log.cleaner.dedupe.buffer.size=2097152"])
    assert error.key == "log.cleaner.dedupe.buffer.size"


def test_limits_of_share_groups_do_not_contradict_each_other() -> None:
    """Kafka refuses to start with such values."""
    load(flags=["group.share.min.session.timeout.ms=1s", "group.share.session.timeout.ms=5001"])
    for flags, key in (
        (["group.share.session.timeout.ms=44s"], "group.share.session.timeout.ms"),
        (["group.share.max.delivery.count.limit=6", "group.share.delivery.count.limit=7"], "group.share.max.delivery"),
        (["group.share.max.share.sessions=199"], "group.share.max.share.sessions"),
        (["group.share.min.session.timeout.ms=1s", "group.share.session.timeout.ms=5s"], "group.share.heartbeat"),
    ):
        assert refused(flags=flags).key.startswith(key)


# --- Secrets ----------------------------------------------------------------------------------------------------------

SECRETS = [name for name, key in BROKER_KEYS.items() if key.kind.type_name == "password"]


@each_case("name", SECRETS)
def test_a_secret_is_never_shown(name: str) -> None:
    """It is neither in the configuration's text nor in what describes it, nor where it is refused."""
    config, warnings = load(flags=[f"{name}=hunter2"])
    assert "hunter2" not in repr(config) + repr(warnings) + repr(config.describe())
    assert (name, "[hidden]") in [line[:2] for line in config.describe()]
    error = refused(f'"{name}" = ["hunter2"]')
    assert error.message == f'{name} = [hidden] (file seglogd.toml: "{name}") cannot be used: it must be text.'


def test_another_secret_is_a_difference() -> None:
    before, after = (load(flags=[f"ssl.key.password={secret}"])[0] for secret in ("hunter2", "hunter3"))
    (found,) = differences(before, after)
    assert (found.key, found.old, found.new) == ("ssl.key.password", "[hidden]", "[hidden]")


# --- Warnings ---------------------------------------------------------------------------------------------------------


def other_value(key: Key) -> str:
    """A valid value other than what the broker does anyway."""
    taken = {key.text(key.default if key.holds is None else key.holds)}
    words = "true false 2 3 0.25 127.0.0.1:1 lz4 compact 1:1 2000000 json debug empty os PLAINTEXT://127.0.0.1:1 range"
    words += " disabled broker INTERNAL:PLAINTEXT User:alice PLAIN TLSv1.3 required LogAppendTime"
    words += f" {AUTHORIZERS[0]} 4000"
    of_limits = ("45001", "14999", "16000", "2001", "101", "11") if key.name.startswith("group.share.") else ()
    for text in (*words.split(), *of_limits):
        try:
            key.kind.parse(text)
            warnings_of(key, text)
        except (ValueError, InvalidConfigError):
            continue
        if text not in taken:
            return str(text)
    raise AssertionError(key.name)


def warnings_of(key: Key, text: str) -> list[str]:
    """The warnings about a value, as a topic's own or as the broker's."""
    return validate_topic_config({key.name: text})[1] if key.is_topic_key else load(flags=[f"{key.name}={text}"])[1]


@each_case(
    "key",
    [key for key in ALL_KEYS if key.kind.valid.removeprefix("of ") != key.text(key.default)],
    ids=lambda key: key.name,
)
def test_setting_a_key_that_does_nothing_says_so(key: Key) -> None:
    warnings = warnings_of(key, other_value(key))
    if key.is_topic_key:  # some of these values have consequences, which are warned about as well
        warnings = [warning for warning in warnings if " effect" in warning]
    assert len(warnings) == (0 if key.effect is Effect.NOW else 1)
    assert all(warning.startswith(key.name) and warning.endswith(".") for warning in warnings)


@each_case("key", [key for key in ALL_KEYS if key.holds is not None], ids=lambda key: key.name)
def test_a_value_that_says_what_happens_anyway_needs_no_warning(key: Key) -> None:
    assert key.holds is not None
    assert warnings_of(key, key.text(key.holds)) == []


def test_a_warning_names_the_setting_and_its_origin() -> None:
    (warning,) = load(environ={"SEGLOG_NUM_IO_THREADS": "2"})[1]
    assert warning == (
        "num.io.threads (environment SEGLOG_NUM_IO_THREADS) is accepted but has no effect here: one event loop serves "
        "all requests."
    )


# --- Documents --------------------------------------------------------------------------------------------------------


def test_every_name_appears_in_the_page() -> None:
    page = render_document()
    for name in (CONFIG_NAMES | set(TOPIC_NAMES)) - {"log.flush.scheduler.interval.ms"}:
        assert f"`{name}`" in page


def test_the_example_in_the_page_can_be_used() -> None:
    text = render_document().split("```toml\n")[1].split("```")[0]
    config, _ = load(text)
    assert config.topic_config({}).retention_ms == 720 * HOUR_MS


def test_the_example_configuration_loads_without_a_warning() -> None:
    text = (ROOT / "deploy" / "seglogd.toml").read_text(encoding="utf-8")
    config, warnings = load(text)
    assert warnings == []
    assert config.log_dir == "/var/lib/seglog/data"
    assert all(config.origin(name).kind is OriginKind.FILE for name in tomllib.loads(text))


# --- Durations, sizes, consequences -----------------------------------------------------------------------------------


def test_every_number_of_time_or_bytes_is_known_as_one_by_its_name() -> None:
    """A new key that counts something else is to be listed here; one that does not must be readable with its unit."""
    numbers = {name for key in ALL_KEYS for name in key_names(key) if isinstance(key.kind, Whole | Double)}
    assert {name for name in numbers if unit_of(name) is None} == {
        *("flush.messages", "log.flush.interval.messages", "min.insync.replicas"),
        *("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio", "log.cleaner.io.buffer.load.factor"),
        *("compression.gzip.level", "compression.lz4.level", "compression.zstd.level"),
        *("num.partitions", "seglog.connections.max", "seglog.partitions.max", "seglog.handles.max"),
        *("seglog.metrics.topics.max", "seglog.metrics.groups.max"),
        *("num.recovery.threads.per.data.dir", "log.cleaner.threads"),
        *("offsets.topic.num.partitions", "transaction.state.log.num.partitions"),
        *("node.id", "broker.id", "default.replication.factor", "offsets.topic.replication.factor"),
        *("transaction.state.log.replication.factor", "transaction.state.log.min.isr"),
        *("share.coordinator.state.topic.replication.factor", "share.coordinator.state.topic.min.isr"),
        *("share.coordinator.state.topic.num.partitions", "num.replica.fetchers", "num.network.threads"),
        *("share.coordinator.threads", "share.coordinator.snapshot.update.records.per.snapshot"),
        *("group.share.delivery.count.limit", "group.share.partition.max.record.locks"),
        *("group.share.min.delivery.count.limit", "group.share.min.partition.max.record.locks"),
        *("group.share.max.delivery.count.limit", "group.share.max.partition.max.record.locks"),
        "group.share.max.share.sessions",
        *("max.connections", "max.connections.per.ip", "max.connection.creation.rate"),
        *("quota.window.num", "quota.window.size.seconds"),
        *("controller.quota.window.num", "controller.quota.window.size.seconds"),
        *("num.io.threads", "background.threads", "group.coordinator.threads", "queued.max.requests"),
        *("sasl.oauthbearer.clock.skew.seconds", "sasl.kerberos.min.time.before.relogin"),
        *("sasl.kerberos.ticket.renew.jitter", "sasl.kerberos.ticket.renew.window.factor"),
    }


def key_names(key: Key) -> set[str]:
    return {key.name, *key.aliases, *(synonym.name for synonym in key.synonyms)}


@each_case("key", TOPIC_KEYS.values(), ids=lambda key: key.name)
def test_every_default_can_be_written_as_it_is_read(key: Key) -> None:
    unit = unit_of(key.name)
    if unit is not None and isinstance(key.default, int):
        reading = re.sub(r"(\d+) (d|h|m|s)\w+$", r"\1\2", reading_of(key.default, unit))
        if reading not in {"", "no limit"}:
            assert validate_topic_config({key.name: reading})[0] == {key.name: str(key.default)}


@each_case(
    ("overrides", "says"),
    [
        ({"retention.bytes": "-5"}, "retention.bytes = -5 sets no limit, as -1 does."),
        ({"retention.bytes": "1M"}, "retention.bytes = 1048576 is less than segment.bytes = 1073741824: "),
        ({"retention.ms": 604_800 // 3600}, "retention.ms = 168 counts milliseconds: "),
        ({"retention.ms": 0}, "retention.ms = 0 counts milliseconds: "),
        ({"max.message.bytes": 67}, "max.message.bytes = 67 refuses every record: the smallest batch there is has 68 "),
        ({"max.message.bytes": 100}, "max.message.bytes = 100 refuses all but the smallest records: "),
        (
            {"max.message.bytes": "2M", "segment.bytes": "1M"},
            "max.message.bytes = 2097152 is more than segment.bytes = 1048576: ",
        ),
    ],
)
def test_a_value_that_few_can_mean_is_taken_with_a_warning_that_says_what_follows(
    overrides: Mapping[str, object], says: str
) -> None:
    assert [warning for warning in validate_topic_config(overrides)[1] if warning.startswith(says)]


def test_the_smallest_limit_that_is_no_empty_promise_lets_a_record_in() -> None:
    assert len(encode_batch([(0, None, None, ())])) == BATCH_BYTES_MIN


def test_a_brokers_default_is_warned_about_under_the_name_it_was_written() -> None:
    _, warnings = load(flags=["log.retention.bytes=-5", "message.max.bytes=100"])
    assert [warning.partition(" = ")[0] for warning in warnings] == ["log.retention.bytes", "message.max.bytes"]


def test_nothing_is_said_of_what_is_usual() -> None:
    assert load(flags=["seglog.http.listen="])[1] == []
    usual = {"retention.ms": "7d", "retention.bytes": "10GiB", "max.message.bytes": "4MiB", "segment.bytes": "256MiB"}
    assert validate_topic_config(usual)[1] == []
    compacted = {"cleanup.policy": "compact", "retention.ms": 5, "retention.bytes": 5}
    assert validate_topic_config(compacted)[1] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("127.0.0.1:5, 2001:DB8:0::1:0", ("127.0.0.1:5", "2001:db8::1:0")),
        *((text, None) for text in ("h:5", "127.0.0.1", "127.0.0.1:-", "127.0.0.1:1.5")),
    ],
)
def test_numbers_for_single_addresses(text: str, expected: tuple[str, ...] | None) -> None:
    if expected is not None:
        assert AddressCounts().parse(text) == expected
        return
    with pytest.raises(ValueError, match="must be ADDRESS:NUMBER"):
        AddressCounts().parse(text)
