"""Changes: the command is shown, and that command runs."""

import errno
import os
from typing import Any

import pytest
from starlette.testclient import TestClient

from seglog.core.security import Tls
from seglog.testing import Broker
from seglog_console import changes
from seglog_console.app import application
from seglog_console.changes import Fields, argv_of
from seglog_console.commands import Outcome, options_of
from seglog_console.console import Console
from seglog_console.pages import BadInputError
from tests.support import each_case
from tests.unit.clients.console.conftest import CommandsHere, Visitor


@each_case(
    ("command", "fields", "argv"),
    [
        ("group delete {group} --yes", {"group": "--help"}, ["group", "delete", "--yes", "--", "--help"]),
        ("reset {group} --to={to} [--x={x}]", {"group": "app", "to": "-1h"}, ["reset", "app", "--to", "-1h"]),
        ("alter [--config={key}={value}]", {"key": "a", "value": ""}, ["alter", "--config", "a="]),
        ("alter [--config={key}={value}] [--deny]", {"value": "b", "deny": "yes"}, ["alter", "--deny"]),
        ("set {key}={value}", {"key": "{value}", "value": "x y"}, ["set", "{value}=x y"]),
        ("reset [--topic={topics}...|--all-topics]", {"topics": " a\nb "}, ["reset", "--topic", "a", "--topic", "b"]),
        ("reset [--topic={topics}...|--all-topics]", {}, ["reset", "--all-topics"]),
        ("add {name} --password-file -", {"name": "ann"}, ["add", "ann", "--password-file", "-"]),
    ],
)
def test_a_command_has_what_its_fields_say(command: str, fields: dict[str, str], argv: list[str]) -> None:
    assert argv_of(command, Fields(fields)) == argv


@pytest.mark.parametrize(
    ("account", "security", "options"),
    [
        ("", {}, []),
        ("ann", {"mechanism": "PLAIN", "tls": True}, ["--tls", "--user", "ann", "--mechanism", "PLAIN"]),
        ("", {"tls": False, "user": "pages", "password": "x", "mechanism": "PLAIN"}, ["--no-tls"]),
        ("", {"tls": Tls(ca="ca.pem", certificate="c.pem")}, ["--ca", "ca.pem", "--certificate", "c.pem"]),
    ],
)
def test_a_command_says_which_broker_and_how_to_come_to_it(
    account: str, security: dict[str, Any], options: list[str]
) -> None:
    assert options_of("seglogs://b:9192", account, security) == ["--server", "seglogs://b:9192", *options]


def test_fields_have_lines_of_unix_and_nothing_that_no_command_can_have() -> None:
    fields = Fields({"config": "a=1\r\n\r\n b=2 \r\n", "topic": "x\0", "empty": ""})
    assert fields.get("config") == "a=1\n\n b=2 \n"
    assert fields.words("config") == ["a=1", "b=2"]
    for name in ("topic", "empty", "absent"):
        with pytest.raises(BadInputError, match=name):
            fields[name]


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example/", "/\\evil.example/"])
def test_it_leads_back_to_a_page_of_its_own(visitor: Visitor, back: str) -> None:
    visitor.see("/")
    [session] = visitor.browser.app.state.console.sessions._open.values()  # type: ignore[attr-defined]
    sent = {"csrf": session.csrf, "topic": "x"}
    address, headers = f"/change/topic-delete?back={back}", {"origin": "http://localhost"}
    assert visitor.browser.post(address, data=sent, headers=headers).status_code == 400
    assert visitor.browser.post("/change/nothing", data=sent, headers=headers).status_code == 404
    assert visitor.browser.post("/change/topic-delete", data=sent | {"csrf": "x"}, headers=headers).status_code == 403


def test_a_console_that_is_read_only_changes_nothing(server: Broker, commands: CommandsHere) -> None:
    console = Console(server.address, has_token=False, is_read_only=True)
    console.commands = commands
    with TestClient(application(console), base_url="http://localhost") as browser:
        browser.get("/")
        [session] = console.sessions._open.values()
        sent = {"csrf": session.csrf, "topic": "x", "confirmed": "yes"}
        answer = browser.post("/change/topic-delete", data=sent, headers={"origin": "http://localhost"})
    assert answer.status_code == 403
    assert "read-only" in answer.text
    context = console.templates._environment.from_string("").new_context({"read_only": True})
    assert changes.change_form(context, "topic-delete", "Delete it") == ""
    assert commands.ran == []


def test_a_command_that_cannot_be_started_is_told(
    visitor: Visitor, commands: CommandsHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def child(*_: object) -> Outcome:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))

    monkeypatch.setattr(commands, "child", child)
    visitor.see("/topics")
    visitor.send("/change/topic-create", topic="t")
    assert "Argument list too long; nothing was done" in visitor.send("/change/topic-create")
    assert visitor.status == 400
