"""The topic registry: its content, and malformed files, which it refuses."""

import json
from dataclasses import asdict

import pytest

from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry, Topics
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_protocol.errors import LogDirectoryError
from seglog_protocol.version import VERSION
from tests.support import each_case

_PATH = "/seglog-topics.json"
_ID = "IVT1Seu3QjacxS7oBTKhDQ"


def _loaded(content: bytes) -> TopicRegistry:
    fs = ForgetfulFileSystem()
    fs.load({_PATH: content})
    registry = TopicRegistry(fs, _PATH)
    registry.load()
    return registry


def test_topics_are_read_back_after_a_power_cut() -> None:
    fs = ForgetfulFileSystem()
    registry = TopicRegistry(fs, _PATH)
    second = Topic("b", _ID, 3, {"retention.ms": "-1"}, ["adopted"])
    registry.topics = Topics({"b": second, "a": Topic("a", "AAAAAAAAAAAAAAAAAAAAZQ", 1)})
    registry.deleting = ["AAAAAAAAAAAAAAAAAAAAZg"]
    registry.save()
    again = TopicRegistry(fs.found_after(POWER_LOSS), _PATH)
    again.load()
    assert again.topics == registry.topics
    assert again.deleting == registry.deleting


def test_the_content_with_one_topic_more_changes_nothing() -> None:
    registry = TopicRegistry(ForgetfulFileSystem(), _PATH)
    content = registry.content(adding={"a": Topic("a", _ID, 2)})
    assert registry.topics == {}
    assert [topic["name"] for topic in json.loads(content)["topics"]] == ["a"]
    assert _loaded(content).topics == {"a": Topic("a", _ID, 2)}


def test_a_topic_is_found_by_its_id_until_it_is_deleted_or_made_again() -> None:
    registry = _loaded(json.dumps({"version": 1, "topics": [{"name": "a", "id": _ID, "partitions": 1}]}).encode())
    assert registry.deleting == [], "an older file without notes and deletions"
    assert registry.topics.with_id(_ID) == Topic("a", _ID, 1)
    registry.topics["a"] = altered = Topic("a", _ID, 2)
    assert registry.topics.with_id(_ID) is altered
    registry.topics["a"] = Topic("a", other := "AAAAAAAAAAAAAAAAAAAAZQ", 1)
    assert registry.topics.with_id(_ID) is None
    assert registry.topics.with_id(other) == Topic("a", other, 1)
    registry.topics["b"] = Topic("b", other, 1)  # a directory that was copied by hand
    del registry.topics["a"]
    assert registry.topics.with_id(other) == Topic("b", other, 1)
    del registry.topics["b"]
    assert registry.topics.with_id(other) is None
    registry.topics = Topics({"c": Topic("c", _ID, 1)})
    assert registry.topics.with_id(_ID) == Topic("c", _ID, 1)


@each_case(
    "topic",
    [
        {"name": "a/b", "id": _ID, "partitions": 1},
        {"name": "a", "id": "AAAAAAAAAAAAAAAAAAAAAA", "partitions": 1},
        {"name": "a", "id": _ID, "partitions": 0},
        {"name": 5, "id": _ID, "partitions": 1},
        {"name": "a", "id": _ID, "partitions": 1, "colour": "red"},
        "a",
    ],
)
def test_an_invalid_topic_is_refused(topic: object) -> None:
    with pytest.raises(LogDirectoryError, match="cannot be understood"):
        _loaded(json.dumps({"version": 1, "topics": [topic]}).encode())


@each_case("content", [b"", b"{", b"[]", b"{}", b'{"topics": []}', b'{"version": 1}', b"\xff", b"null"])
def test_a_registry_that_makes_no_sense_is_refused_with_what_to_do(content: bytes) -> None:
    with pytest.raises(LogDirectoryError, match=f"{_PATH}.*restore it from a backup"):
        _loaded(content)
    with pytest.raises(LogDirectoryError, match="version 2 is not known"):
        _loaded(b'{"version": 2, "topics": []}')


def test_the_file_is_json_with_a_line_for_each_value() -> None:
    """The file is JSON with a line for each value whatever changed since it was last written."""
    registry = TopicRegistry(ForgetfulFileSystem(), "/topics.json")
    for number in range(3):
        name = f"topic-{number}"
        registry.topics[name] = Topic(name, _ID, number + 1, {"retention.ms": "1", "ü": '"\n'}, ["one", "two"])
        registry.topics["topic-0"] = Topic("topic-0", _ID, 10 + number, kafka_config={"retention.ms": "1"})
        registry.deleting.append(_ID)
        registry.kafka_metadata = {"00000000000000000000.log": number}
        facts = {
            "version": 1,
            "topics": [
                {key: value for key, value in asdict(topic).items() if value or key != "kafka_config"}
                for topic in registry.topics.values()
            ],
            "deleting": registry.deleting,
            "kafka_metadata": registry.kafka_metadata,
            "written_by": VERSION,
        }
        content = registry.content()
        facts["crc"] = json.loads(content)["crc"]
        assert content.decode() == json.dumps(facts, indent=1) + "\n"
