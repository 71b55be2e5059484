"""Accounts, rules and quotas, as an administrator and as anybody sees them."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

import seglog
from seglog.core.access import create_rules, enforce_rules
from seglog.testing import Broker
from seglog_console.app import application
from seglog_console.console import Console
from seglog_protocol.access import Kind, Operation, PatternType, Permission, Rule
from tests.unit.clients.console.conftest import CommandsHere, Visitor

ACCOUNTS = {"admin": "of the admin", "ann": "of ann"}


@pytest.fixture(scope="module")
def server() -> Iterator[Broker]:
    with Broker(users=ACCOUNTS, admins=["admin"]) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Broker) -> Iterator[seglog.Client]:
    with seglog.connect(server.address, user="admin", password=ACCOUNTS["admin"]) as connected:
        yield connected


@pytest.fixture
def visitor(server: Broker) -> Iterator[Visitor]:
    console = Console(server.address, has_token=False)
    console.commands = CommandsHere()
    with TestClient(application(console), base_url="http://localhost") as browser:
        yield Visitor(browser)


def log_in(visitor: Visitor, name: str) -> CommandsHere:
    visitor.see("/login")
    visitor.send("/login", account=name, password=ACCOUNTS[name])
    return visitor.browser.app.state.console.commands  # type: ignore[attr-defined, no-any-return]


def test_an_account_is_added_with_a_password_that_no_page_shows_and_deleted(
    visitor: Visitor, client: seglog.Client
) -> None:
    commands = log_in(visitor, "admin")
    visitor.see("/access")
    page = visitor.send("/change/user-add", name="zoe")
    assert "user add zoe --password-file -" in page
    assert "The password is its standard input" in page
    assert visitor.send("/change/user-add", secret="one", again="another").startswith("To the content")
    assert visitor.status == 400
    assert commands.ran == []
    visitor.see("/access")
    visitor.send("/change/user-add", name="zoe")
    page = visitor.send("/change/user-add", secret="kept to herself", again="kept to herself")
    assert "zoe: added" in page
    assert "kept to herself" not in visitor.html
    assert commands.ran[-1][:4] == ["--server", commands.ran[-1][1], "--user", "admin"]
    with seglog.connect(client.server, user="zoe", password="kept to herself"):
        pass
    visitor.send("/change/user-delete?name=zoe")
    assert "zoe: deleted" in visitor.send("/change/user-delete")


def test_a_rule_is_added_and_checked_and_deleted(visitor: Visitor) -> None:
    commands = log_in(visitor, "admin")
    visitor.see("/access")
    visitor.send("/change/rule-add", user="ann", consume="yes", topic="orders*", operations="", host="")
    page = visitor.send("/change/rule-add")
    assert commands.ran[-1][4:] == ["acl", "add", "--user", "ann", "--topic", "orders*", "--consume"]
    assert "User:ann allow READ topic:orders* *" in page
    page = visitor.see("/access?who=ann&operation=READ&resource=topic:orders.new")
    assert "ann may READ topic:orders.new: the rule ALLOW READ on TOPIC orders*" in page
    assert "ann may not WRITE topic:x" in visitor.see("/access?who=ann&operation=WRITE&resource=topic:x")
    visitor.see("/access?who=ann&operation=WRITE&resource=planet:x")
    assert visitor.status == 400
    visitor.see("/access")
    page = visitor.send("/change/rule-remove")
    assert "topic:orders* User:ann * allow READ" in page
    visitor.send("/change/rule-remove")
    assert "No rules." in visitor.see("/access")


def test_rules_are_put_in_force_and_out_again_behind_what_they_would_refuse(visitor: Visitor) -> None:
    log_in(visitor, "admin")
    assert "Rules are not in force" in visitor.see("/access")
    page = visitor.send("/change/rules-enable")
    assert "nothing is changed" in page
    assert "It has failed" not in page
    assert "Rules are in force." in visitor.send("/change/rules-enable")
    visitor.send("/change/rules-disable")
    assert "Rules are not in force" in visitor.send("/change/rules-disable")


def test_a_quota_is_set_and_taken_back(visitor: Visitor) -> None:
    commands = log_in(visitor, "admin")
    visitor.see("/access")
    visitor.send("/change/quota-set", key="producer_byte_rate", value="1MB", user="ann", client_defaults="yes")
    page = visitor.send("/change/quota-set")
    assert "producer_byte_rate 1,000,000" in page
    assert "each other client-id, user ann" in page
    visitor.send("/change/quota-remove")
    assert "No quotas." in visitor.send("/change/quota-remove")
    assert commands.ran[-1][4:] == ["quota", "remove", "--user", "ann", "--client-defaults"]


def test_who_may_not_administer_reads_that_in_each_part_and_is_refused_by_the_broker(
    visitor: Visitor, client: seglog.Client
) -> None:
    client.create_topic("shown", 1)
    client.create_topic("hidden", 1)
    reads = Rule(Kind.TOPIC, PatternType.LITERAL, "shown", "User:ann", "*", Operation.READ, Permission.ALLOW)
    client.converse(create_rules([reads]))
    client.converse(enforce_rules(is_on=True))
    log_in(visitor, "ann")
    assert "this account may see is under topics and groups" in visitor.see("/")
    for address in ("/groups", "/broker", "/transactions"):
        visitor.see(address)
        assert visitor.status == 200
    assert "shown 1 1 0 B - 7 to 14 d, configured 7 d" in (page := visitor.see("/topics"))
    assert "hidden" not in page
    assert "1 partition" in visitor.see("/topics/shown")
    visitor.see("/topics/hidden")
    assert visitor.status == 403
    visitor.see("/access")
    assert visitor.html.count('<p class="warn">') == 4
    visitor.send("/change/user-add", name="eve")
    page = visitor.send("/change/user-add", secret="x", again="x")
    assert "It has failed, with exit code 4." in page
