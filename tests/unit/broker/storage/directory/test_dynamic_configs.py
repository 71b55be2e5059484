"""``seglog-configs.json``: what is written is read back, after any crash; what is not understood is refused."""

import json
import re
from contextlib import suppress
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.config.dynamic_config import ALL_BROKERS, DynamicConfig
from seglog_broker.config.group_config import GROUP_KEYS
from seglog_broker.storage.directory.dynamic_configs import (
    decode_dynamic_configs,
    encode_dynamic_configs,
    read_dynamic_configs,
)
from seglog_broker.storage.io.filesystem import write_file_atomically
from seglog_broker.storage.io.small_files import seal
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.errors import InvalidConfigError, LogDirectoryError
from tests.support import REPOSITORY, each_case, examples
from tests.unit.broker.storage.directory.directories import opened

PATH: Final = "/data/seglog-configs.json"
OLD: Final = DynamicConfig({ALL_BROKERS: {"num.partitions": "3"}})
NEW: Final = OLD.with_broker("1", {"log.retention.ms": "-1", "log.cleanup.policy": "compact,delete"}).with_group(
    "g", {"consumer.session.timeout.ms": "50000"}
)


def written(*contents: DynamicConfig) -> ForgetfulFileSystem:
    fs = ForgetfulFileSystem()
    fs.make_directory("/data")
    fs.sync_directory("/")
    for content in contents:
        write_file_atomically(fs, PATH, encode_dynamic_configs(content))
    return fs


numbers = st.integers(1, 2**31 - 1).map(str)
brokers = st.dictionaries(
    st.sampled_from([ALL_BROKERS, "0", "1", "4711"]),
    st.fixed_dictionaries(
        {},
        optional={
            "num.partitions": numbers,
            "log.retention.ms": numbers | st.just("-1"),
            "seglog.log.level": st.sampled_from(["debug", "error"]),
            "log.cleanup.policy": st.sampled_from(["", "compact", "compact,delete"]),
            "advertised.listeners": st.just("PLAINTEXT://kafka.example:9092"),
        },
    ),
)


groups = st.dictionaries(st.text(), st.dictionaries(st.sampled_from(sorted(GROUP_KEYS)), numbers))


@given(brokers, groups)
def test_what_is_written_is_read_back(brokers: dict[str, dict[str, str]], groups: dict[str, dict[str, str]]) -> None:
    kept = DynamicConfig(brokers, groups)
    assert read_dynamic_configs(written(kept), PATH) == kept


@settings(max_examples=examples(2000))
@given(
    st.binary(max_size=100)
    | st.recursive(
        st.none() | st.booleans() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["version", "brokers", "1", "", "num.partitions", "x"]), inner | st.just(1), max_size=3
            )
        ),
    ).map(lambda value: seal(value) if isinstance(value, dict) else json.dumps(value).encode())
)
def test_any_content_is_settings_or_refused_with_a_sentence(content: bytes) -> None:
    found = DynamicConfig()
    with suppress(ValueError, InvalidConfigError):
        found = decode_dynamic_configs(content)
    assert decode_dynamic_configs(encode_dynamic_configs(found)) == found


def test_without_a_file_there_are_no_settings() -> None:
    assert read_dynamic_configs(written(), PATH) == DynamicConfig()


@each_case(
    ("content", "why"),
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "no version"),
        (seal({"version": 2, "brokers": {}}), "version 2 is not known"),
        (seal({"version": 1, "later": {}}), "'later', which is not known"),
        (seal({"version": 1, "brokers": []}), "another form"),
        (seal({"version": 1, "brokers": {"1": 7}}), "another form"),
        (seal({"version": 1, "brokers": {"1": {"num.partitions": 7}}}), "not text"),
        (seal({"version": 1, "brokers": {"x": {}}}), "'x' is not the number of a broker"),
        (
            seal({"version": 1, "brokers": {"1": {"log.dir": "/x"}}}),
            "'log.dir' is not a key that can be set at run time",
        ),
        (seal({"version": 1, "brokers": {"1": {"num.partitions": "0"}}}), "must be a whole number from 1"),
        (seal({"version": 1, "groups": {"g": {"share.session.timeout.ms": "1"}}}), "would have no effect"),
        (seal({"version": 1, "groups": {"g": {"consumer.session.timeout.ms": "x"}}}), "must be a whole number"),
        (encode_dynamic_configs(NEW).replace(b"-1", b"-2"), "checksum"),
    ],
)
def test_a_file_that_is_not_understood_is_refused_and_stays(content: bytes, why: str) -> None:
    fs = written()
    fs.load({PATH: content})
    for _ in range(2):
        with pytest.raises(LogDirectoryError, match=why) as raised:
            opened(fs).close()
        assert PATH in raised.value.message
        assert fs.snapshot()[PATH] == content


def test_the_example_in_the_document_is_such_a_file() -> None:
    page = (REPOSITORY / "docs" / "STORAGE.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```json\n(\{\"version\": 1, \"brokers\".*\n)```", page)
    found = decode_dynamic_configs(example.encode())
    assert encode_dynamic_configs(found).decode() == example
    assert found.of_broker(ALL_BROKERS)


def test_a_file_without_its_checksum_was_edited_by_hand_and_is_taken() -> None:
    fs = written()
    fs.load({PATH: b'{"version": 1, "brokers": {"": {"num.partitions": "3"}}}'})
    assert read_dynamic_configs(fs, PATH) == OLD
