"""Search: what it finds where, how it goes on from step to step, and what it says about how far it is."""

import re

import pytest
from starlette.testclient import TestClient

import seglog
from seglog.testing import Broker
from seglog_console.app import application
from seglog_console.console import Console
from seglog_console.search import MATCHES_MAX
from tests.support import each_case
from tests.unit.clients.console.conftest import text_of
from tests.unit.clients.console.test_records import link, offsets


@pytest.fixture(scope="module")
def haystack(client: seglog.Client) -> str:
    """600 records of two partitions in compressed batches, of which every third has a needle in its value."""
    client.create_topic("hay", 3, config={"retention.ms": -1})
    with client.producer("hay", compression="lz4", batch_bytes=2000) as producer:
        for number in range(600):
            value = f"a needle, number {number}" if number % 3 == 0 else "hay"
            producer.send(value, key=f"straw {number}", partition=number % 2, timestamp=number * 1000)
        producer.send(
            "<b>" + "x" * 5000 + "pin</b>", key=b"\x00\xff", partition=2, headers=[("colour", b"red"), ("n", None)]
        )
    return "hay"


def test_it_goes_on_until_each_match_was_shown_once(browser: TestClient, haystack: str) -> None:
    page = browser.get(f"/topics/{haystack}/search?find=needle").text
    assert re.search(r"50 matches; 1\d\d of 601 offsets .* 25%: partition 0, offset 1\d\d is next", text_of(page))
    found = offsets(page)
    steps = 1
    while "data-search-next" in page:
        page = browser.get(f"/topics/{haystack}/search{link(page, 'Go on')}").text
        found += offsets(page)
        steps += 1
    assert found == [f"{first % 3}:{offset}" for first in (0, 1) for offset in range(first, 300, 3)]
    assert steps == 200 // MATCHES_MAX + 1
    assert "200 matches; 601 of 601 offsets" in text_of(page)
    assert "100%: that is all" in text_of(page)


@each_case(
    ("asked", "found"),
    [
        ("find=number 6&partition=0", ["0:3", "0:30", "0:33"]),
        ("find=straw 77", ["1:38"]),
        ("find=colour", ["2:0"]),
        ("find=red", ["2:0"]),
        ("find=00 ff&hex=1", ["2:0"]),
        ("find=needle&from=290", ["0:291", "0:294", "0:297", "1:292", "1:295", "1:298"]),
        ("find=needle&to=3", ["0:0", "1:1"]),
        ("find=needle&from=@20000&to=@30000", ["0:12", "1:10", "1:13"]),
        ("find=pin</b>&isolation=read_committed", ["2:0"]),
    ],
)
def test_it_looks_where_it_is_told_to(browser: TestClient, haystack: str, asked: str, found: list[str]) -> None:
    answer = browser.get(f"/topics/{haystack}/search?{asked}")
    assert offsets(answer.text) == found
    assert "that is all" in text_of(answer.text)


def test_what_was_found_is_marked_and_long_values_are_shown_around_it(browser: TestClient, haystack: str) -> None:
    page = browser.get(f"/topics/{haystack}/search", params={"find": "pin</b>"}).text
    assert "<mark>pin&lt;/b&gt;</mark>" in page
    assert re.search(r"from byte 4,9\d\d:", page)


def test_marks_do_not_make_a_page_large(browser: TestClient, client: seglog.Client) -> None:
    client.create_topic("needles")
    with client.producer("needles") as producer:
        for _ in range(60):
            producer.send('"' * 5000, key='"' * 500, headers=[('"' * 500, b'"' * 500)] * 20)
    assert len(browser.get("/topics/needles/search", params={"find": '"'}).content) <= 100_000


@each_case(
    ("asked", "command"),
    [
        ("find=it's", """hay --offsets --keys --headers | grep -aF -e 'it'"'"'s'"""),
        ("find=a b&partition=1&from=-1h&to=9", "--partition=1 --from -1h --until 9 --offsets --keys --headers | grep"),
        ("find=00FF&hex=1", "hay --offsets --keys --headers | LC_ALL=C grep -aP '\\x00\\xff'"),
    ],
)
def test_it_has_the_command_that_finds_the_same(browser: TestClient, haystack: str, asked: str, command: str) -> None:
    assert command in text_of(browser.get(f"/topics/{haystack}/search?{asked}").text)


@each_case(
    ("asked", "said"),
    [
        ("find=zz&hex=1", "'zz' is no bytes in hex"),
        ("find=x&from=nonsense", "neither an offset nor a time"),
        ("find=x&next=x", "next is 'x'"),
        ("find=x&of=-1", "of is '-1'"),
    ],
)
def test_what_cannot_be_searched_is_said(browser: TestClient, haystack: str, asked: str, said: str) -> None:
    answer = browser.get(f"/topics/{haystack}/search?{asked}")
    assert answer.status_code == 400
    assert said in text_of(answer.text)


def test_damage_is_named_and_searched_around(damaged: Broker) -> None:
    with TestClient(application(Console(damaged.address, has_token=False)), base_url="http://localhost") as browser:
        page = text_of(browser.get("/topics/t/search?find=e").text)
    assert re.search(r"2 matches; 3 of 3 offsets .* on e .* offsets 1 to 1 are damaged .* thr e e", page)
