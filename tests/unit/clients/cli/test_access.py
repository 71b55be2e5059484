"""``seglog acl`` and ``seglog quota``, with a real broker: two teams on one broker, as ACCESS.md tells it."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import seglog
from seglog.cli.exits import FAILED, OK, USAGE
from seglog.testing import Broker
from seglog_protocol.errors import GroupAuthorizationError, TopicAuthorizationError
from tests.support import REPOSITORY
from tests.unit.clients.cli.conftest import Said, Typed

PASSWORDS = {"admin": "of-admin", "ann": "of-ann", "bob": "of-bob"}


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    password = tmp_path / "password"
    password.write_text(PASSWORDS["admin"])
    password.chmod(0o600)
    with Broker(users=PASSWORDS, admins=["admin"]) as running:
        monkeypatch.setenv("SEGLOG_SERVER", running.address)
        monkeypatch.setenv("SEGLOG_USER", "admin")
        monkeypatch.setenv("SEGLOG_PASSWORD_FILE", str(password))
        yield running


PAGE: Final = (REPOSITORY / "docs" / "ACCESS.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("broker")
def test_the_story_of_the_page_is_what_happens(typed: Typed) -> None:
    shown = []
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        if language:
            shown = [typed(*shlex.split(line.removesuffix(" || true"))[1:]) for line in text.splitlines()]
            assert [code for code, _, _ in shown if code not in (OK, FAILED)] == []
        else:
            assert shown[-1][1].replace(" ", "") == text.replace(" ", "")  # columns are as wide as a terminal lets them
    assert shown
    assert typed("acl", "enable")[1] == "rules are in force already\n"


def connected(broker: Broker, user: str) -> seglog.Client:
    return seglog.connect(broker.address, user=user, password=PASSWORDS[user])


def test_two_teams_share_a_broker_and_neither_reaches_the_other(broker: Broker, said: Said) -> None:
    with connected(broker, "admin") as admin:
        admin.create_topic("orders-in", 1)
        admin.create_topic("bills", 1)
    assert "rules allow all that was done lately" in said(FAILED, "acl", "enable")
    add = ("acl", "add", "--user", "ann", "--topic", "orders*", "--produce", "--consume", "--group", "workers")
    assert "rules are not in force" in said(OK, *add)
    with connected(broker, "ann") as ann, ann.producer("bills") as producer:
        producer.send("1")  # as long as rules are not in force
    refused = said(FAILED, "acl", "enable")
    assert "User:ann" in refused
    assert "topic:bills" in refused
    assert "nothing is changed" in refused
    assert "rules are in force" in said(OK, "acl", "enable", "--yes")
    with connected(broker, "ann") as ann:
        with ann.producer("orders-in") as producer:
            producer.send("1")
        with ann.consumer("orders-in", group="workers", follow=False, start="earliest") as consumer:
            assert [record.value for record in consumer] == [b"1"]
        with pytest.raises(TopicAuthorizationError), ann.producer("bills") as producer:
            producer.send("1").result()
        with (
            pytest.raises(GroupAuthorizationError),
            ann.consumer("orders-in", group="theirs", follow=False, start="earliest") as consumer,
        ):
            list(consumer)
        assert [topic.name for topic in ann.topics()] == ["orders-in"]
    with connected(broker, "bob") as bob:
        assert not bob.topics()
    assert "rules are not in force any more" in said(OK, "acl", "disable", "--yes")


def test_rules_are_listed_checked_and_removed(broker: Broker, said: Said) -> None:
    said(OK, "acl", "add", "--user", "ann", "--topic", "orders*", "--produce", "--consume")
    said(OK, "acl", "add", "--user", "*", "--topic", "orders-secret", "--operation", "read", "--deny")
    titles, *rows = said(OK, "acl", "list", "--topic", "orders*").splitlines()[:2]
    assert titles.split() == ["RESOURCE", "WHO", "FROM", "PERMISSION", "OPERATIONS"]
    assert rows[0].split() == ["topic:orders*", "User:ann", "*", "allow", "READ,", "WRITE,", "CREATE"]
    assert len(json.loads(said(OK, "acl", "list", "--json"))) == 4
    assert "the rule ALLOW READ on TOPIC orders* for User:ann" in said(
        OK, "acl", "check", "ann", "READ", "topic:orders-1"
    )
    assert "the rule DENY READ" in said(FAILED, "acl", "check", "ann", "READ", "topic:orders-secret")
    assert "no rule allows it" in said(FAILED, "acl", "check", "bob", "READ", "topic:orders-1")
    assert "super.users" in said(OK, "acl", "check", "admin", "ALTER", "cluster")
    assert "there is no account of User:anne" in said(OK, "acl", "add", "--user", "anne", "--group", "g", "--consume")
    said(OK, "acl", "remove", "--user", "anne", "--yes")
    assert "there is no such rule" in said(OK, "acl", "remove", "--user", "ann", "--group", "g", "--produce", "--yes")
    said(OK, "acl", "remove", "--user", "ann", "--produce", "--yes")
    assert [each["operation"] for each in json.loads(said(OK, "acl", "list", "--user", "ann", "--json"))] == ["READ"]
    said(OK, "acl", "remove", "--user", "ann", "--yes")
    assert len(json.loads(said(OK, "acl", "list", "--json"))) == 1


def test_queues_have_no_numbers_for_who_may_not_see_metrics_and_a_sentence_for_who_may_not_work(
    broker: Broker, said: Said, tmp_path: Path
) -> None:
    said(OK, "acl", "add", "--user", "bob", "--group", "workers", "--topic", "jobs", "--consume")
    said(OK, "acl", "enable", "--yes")
    with connected(broker, "admin") as admin:
        admin.create_topic("jobs", 1)
    with connected(broker, "bob") as bob, bob.queue("jobs", group="workers", prefetch=0) as queue:
        assert queue.get(0) is None
        (tmp_path / "password").write_text(PASSWORDS["bob"])
        shown = said(OK, "--user", "bob", "queue", "list")
        assert "problems are shown to who may DESCRIBE the cluster" in said(OK, "--user", "bob", "ping")
    assert shown.splitlines()[1].split() == ["workers", "Stable", "-", "-", "-", "-"]
    assert "there are no numbers: User:bob may not DESCRIBE CLUSTER" in shown
    with (
        connected(broker, "bob") as bob,
        bob.queue("jobs", group="theirs", prefetch=0) as queue,
        pytest.raises(GroupAuthorizationError, match="queue theirs: this account may not do that"),
    ):
        queue.get(600)


def test_rules_stay_in_force_when_the_last_one_is_deleted_and_over_a_restart(broker: Broker, said: Said) -> None:
    said(OK, "acl", "add", "--user", "ann", "--topic", "t", "--consume")
    said(OK, "acl", "enable", "--yes")
    said(OK, "acl", "remove", "--user", "ann", "--yes")
    broker.restart()
    assert said(OK, "acl", "enable") == "rules are in force already\n"
    with connected(broker, "ann") as ann, pytest.raises(TopicAuthorizationError), ann.producer("t") as producer:
        producer.send("1").result()


@pytest.mark.usefixtures("broker")
def test_rules_that_say_too_little_or_what_there_is_not_are_refused(said: Said) -> None:
    for options, sentence in (
        (("--topic", "t", "--consume"), "--user says for whom"),
        (("--user", "ann", "--consume"), "say for what the rule is"),
        (
            ("--user", "ann", "--topic", "t"),
            "with the topic t? Say --produce or --consume or --operation",
        ),
        (("--user", "ann", "--group", "g", "--operation", "write"), "there is no WRITE of a group"),
        (("--user", "ann", "--topic", "t", "--consume", "--host", "localhost"), "--host is an address"),
        (("--user", "ann", "--topic", "or*ders", "--consume"), "* stands at the end alone"),
    ):
        assert sentence in said(USAGE, "acl", "add", *options)


def test_quotas_are_set_listed_and_taken_back(broker: Broker, said: Said) -> None:
    said(OK, "quota", "set", "producer_byte_rate=1MB", "request_percentage=20", "--user", "ann")
    said(OK, "quota", "set", "consumer_byte_rate=1000", "--user-defaults", "--client-id", "loader")
    titles, *rows = said(OK, "quota", "list").splitlines()
    assert titles.split("  ")[0] == "USER"
    assert [row.split() for row in rows] == [
        ["ann", "-", "-", "producer_byte_rate", "1000000"],
        ["ann", "-", "-", "request_percentage", "20"],
        ["(default)", "loader", "-", "consumer_byte_rate", "1000"],
    ]
    said(OK, "quota", "remove", "request_percentage", "--user", "ann")
    assert "there is no such quota" in said(OK, "quota", "list", "--user", "anne")
    assert json.loads(said(OK, "quota", "list", "--user", "ann", "--json")) == [
        {"entity": {"user": "ann"}, "quotas": {"producer_byte_rate": 1_000_000.0}}
    ]
    assert "say for whom" in said(USAGE, "quota", "set", "producer_byte_rate=1")
    assert "Invalid configuration key bytes" in said(USAGE, "quota", "set", "bytes=1", "--user", "ann")
