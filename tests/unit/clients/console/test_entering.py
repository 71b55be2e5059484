"""Who is let in, with what, and what each answer says against other pages."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from seglog.cli import main
from seglog.cli.exits import USAGE
from seglog.testing import Broker
from seglog_console.app import application
from seglog_console.console import Console
from seglog_console.guard import BODY_BYTES_MAX
from seglog_console.sessions import SESSIONS_MAX, Sessions
from seglog_console.viewer import Viewer
from tests.support import each_case


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with Broker(users={"ann": "secret of ann"}) as started:
        yield started


def browser_of(console: Console) -> TestClient:
    return TestClient(application(console), base_url="http://localhost")


def test_a_token_lets_one_browser_in_and_the_next_one_needs_the_next(server: Broker) -> None:
    said: list[str] = []
    console = Console(server.address, announce=said.append)
    first = console.sessions.token
    with browser_of(console) as browser:
        assert browser.get("/").status_code == 401
        assert browser.get(f"/enter?token={first}").status_code == 200
        assert browser.get("/").status_code == 200
        browser.cookies.clear()
        assert browser.get(f"/enter?token={first}").status_code == 401
        assert browser.get(f"/enter?token={said[0]}").status_code == 200


def test_without_a_token_whoever_comes_is_let_in(server: Broker) -> None:
    with browser_of(Console(server.address, has_token=False)) as browser:
        assert browser.get("/").status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "localhost.evil.example:9180"}, 421),
        ({"host": "[::1]:9180"}, 401),
        ({"host": "["}, 421),
    ],
)
def test_it_answers_to_its_own_names(server: Broker, headers: dict[str, str], status: int) -> None:
    with browser_of(Console(server.address)) as browser:
        assert browser.get("/", headers=headers).status_code == status


@pytest.mark.parametrize(
    "origin", [{}, {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://localhost:1"}]
)
def test_a_form_of_another_page_does_nothing(browser: TestClient, origin: dict[str, str]) -> None:
    assert browser.post("/logout", headers=origin).status_code == 403
    assert browser.get("/").status_code == 200


def test_a_form_needs_the_token_of_its_session(browser: TestClient) -> None:
    for form in ({}, {"csrf": "x"}):
        assert browser.post("/logout", headers={"origin": "http://localhost"}, data=form).status_code == 403
    assert browser.get("/").status_code == 200


def test_a_browser_logs_in_with_its_own_account(secured: Broker) -> None:
    console = Console(secured.address, has_token=False)
    with browser_of(console) as browser:

        def log_in(**form: Any) -> Any:
            return browser.post("/login", headers={"origin": "http://localhost"}, data=form)

        assert browser.get("/").url.path == "/login"
        assert log_in(account="ann", password="wrong").status_code == 401
        page = log_in(account="ann", password="secret of ann")
        assert page.status_code == 200
        assert "as ann" in page.text
        everything = page.text + str(page.history[0].headers) + str(page.headers)
        assert "secret of ann" not in everything
        [session] = console.sessions._open.values()
        assert "secret of ann" not in repr(session)
        csrf = session.csrf
        browser.post("/logout", headers={"origin": "http://localhost"}, data={"csrf": csrf})
        assert browser.get("/").url.path == "/login"


@each_case("form", [{}, {"account": "ann"}, {"account": "a\0", "password": "\0"}])
def test_a_login_that_cannot_be_tried_is_told_and_leaves_other_browsers_alone(
    secured: Broker, form: dict[str, str]
) -> None:
    with browser_of(Console(secured.address)) as browser:
        assert browser.post("/login", headers={"origin": "http://localhost"}, data=form).status_code == 401
        whole = {"account": "ann", "password": "secret of ann"}
        assert "as ann" in browser.post("/login", headers={"origin": "http://localhost"}, data=whole).text


def test_a_form_comes_through_a_proxy_that_has_the_certificate(browser: TestClient) -> None:
    answer = browser.post("/logout", headers={"origin": "https://localhost"}, data={})
    assert "form is not of this browser" in answer.text  # which the guard has let through


def test_a_form_without_a_length_has_an_end(browser: TestClient) -> None:
    kind = {"origin": "http://localhost", "content-type": "application/x-www-form-urlencoded"}
    answer = browser.post("/logout", headers=kind, content=iter([b"x" * BODY_BYTES_MAX, b"x"]))
    assert answer.status_code == 413


def test_a_browser_that_enters_anew_has_left(secured: Broker) -> None:
    console = Console(secured.address)
    with browser_of(console) as browser:
        for _ in range(2):
            form = {"account": "ann", "password": "secret of ann"}
            browser.post("/login", headers={"origin": "http://localhost"}, data=form)
        assert len(console.sessions._open) == 1


def test_sessions_that_no_cookie_came_back_for_make_room_first() -> None:
    sessions = Sessions()
    first = sessions.open(Viewer.__new__(Viewer), is_own_viewer=False)
    assert sessions.find(first.id) is first
    others = [sessions.open(first.viewer, is_own_viewer=False) for _ in range(SESSIONS_MAX)]
    assert first.is_open
    assert not others[0].is_open


def test_a_console_that_is_read_only_may_have_an_account_of_its_own(secured: Broker) -> None:
    account = {"user": "ann", "password": "secret of ann"}
    with browser_of(Console(secured.address, account, has_token=False, is_read_only=True)) as browser:
        assert "as ann, read-only" in browser.get("/").text


def test_no_answer_may_run_what_is_not_of_the_console(browser: TestClient) -> None:
    answer = browser.get("/")
    assert "default-src 'none'; style-src 'self'; script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert "style=" not in answer.text
    assert "<script>" not in answer.text


def test_a_broker_that_is_away_is_a_page_that_says_so() -> None:
    with browser_of(Console("localhost:1", has_token=False)) as browser:
        answer = browser.get("/")
    assert answer.status_code == 502
    assert "seglog doctor" in answer.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--no-token"], "is for a broker without accounts"),
        (["--listen", "0.0.0.0:9180"], "can be reached from other machines"),
    ],
)
def test_a_console_that_would_show_too_much_does_not_start(
    secured: Broker, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--server", secured.address, "console", *options]) == USAGE
    assert said in " ".join(capsys.readouterr().err.split())
