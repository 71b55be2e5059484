"""Pages of records: which they show in which order, what stands where there is none, and how large they become."""

import asyncio
import re
from contextlib import suppress
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

import seglog
from seglog.core.records import FetchedBatch
from seglog.testing import Broker
from seglog_console.app import application
from seglog_console.console import Console
from seglog_console.pages import View
from seglog_console.reading import rows_of_batch
from seglog_console.records import context
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.record_batch import parse_header
from tests.support import each_case
from tests.unit.clients.console.conftest import streamed, text_of
from tests.unit.clients.console.test_values import HOSTILE

HOUR = 3_600_000


@pytest.fixture(scope="module")
def topic(client: seglog.Client) -> str:
    """120 records of three partitions, a minute apart, in turns."""
    client.create_topic("clicks", 3, config={"retention.ms": -1})
    with client.producer("clicks", compression="zstd") as producer:
        for number in range(120):
            producer.send(f"value {number}", key=f"key {number}", partition=number % 3, timestamp=number * 60_000)
    return "clicks"


def offsets(page: str) -> list[str]:
    """The offsets of a page's rows, with their partitions, in its order."""
    return re.findall(r'<th scope="row"><a href="[^"]*">([\d:,]+)</a>', page)


def link(page: str, name: str) -> str:
    """The address behind the link ``name``."""
    found = re.search(rf'<a href="([^"]*)"[^>]*>(?:← )?{name}(?: →)?</a>', page)
    assert found is not None, f"no link {name}"
    return found[1].replace("&amp;", "&")


def test_the_newest_of_all_partitions_come_first_and_older_ones_follow_without_a_gap(
    browser: TestClient, topic: str
) -> None:
    first = browser.get(f"/topics/{topic}/records").text
    second = browser.get(link(first, "Older")).text
    third = browser.get(link(second, "Older")).text
    whole = offsets(first) + offsets(second) + offsets(third)
    assert whole == [f"{number % 3}:{number // 3}" for number in reversed(range(120))]
    assert ">Older<" not in third
    assert ">Newer<" not in first
    assert "key 119 value 119" in text_of(first)
    assert "zstd" in text_of(first)
    assert offsets(browser.get(link(third, "Newer")).text) == list(reversed(offsets(second)))


@each_case(
    ("asked", "shown"),
    [
        ("partition=1&at=earliest&order=newer", [f"1:{offset}" for offset in range(40)]),
        ("partition=1&at=38", ["1:38", "1:39"]),
        ("partition=1&at=2&order=older", ["1:1", "1:0"]),
        ("partition=2&at=@7020000", ["2:39"]),
        ("at=1970-01-01T01:58Z", ["1:39", "2:39"]),
        ("at=0:39,1:40,2:40", ["0:39"]),
    ],
)
def test_a_page_begins_at_an_offset_or_a_time(browser: TestClient, topic: str, asked: str, shown: list[str]) -> None:
    assert offsets(browser.get(f"/topics/{topic}/records?{asked}").text) == shown


@each_case(
    ("asked", "command"),
    [
        ("partition=1&at=38", "consume clicks --partition=1 --from 38 --count 2 --offsets --keys --headers"),
        ("at=1970-01-01T01:58Z", "consume clicks --from 1970-01-01T01:58Z --count 2 --offsets"),
        ("partition=1&isolation=read_committed", "--isolation=read_committed --from 0 --count 40"),
        ("at=0:39,1:40,2:40", "consume clicks --from @7020000 --until @7020001"),
        ("follow=1", "consume clicks --follow"),
    ],
)
def test_a_page_has_the_command_that_prints_the_same(browser: TestClient, topic: str, asked: str, command: str) -> None:
    assert command in text_of(browser.get(f"/topics/{topic}/records?{asked}").text)


def test_a_topic_whose_name_looks_like_an_option_is_no_option(browser: TestClient, client: seglog.Client) -> None:
    client.create_topic("-t")
    with client.producer("-t") as producer:
        producer.send(b"x")
    for page in ("records?", "0/records/0?", "0/seek?at=0", "search?find=x", "produce?partition=0&like=0"):
        assert re.search(r"<code>seglog [^<]* -- -t( 0)?( \||</code>)", browser.get(f"/topics/-t/{page}").text), page


@each_case(
    ("asked", "status", "said"),
    [
        ("at=nonsense", 400, "neither an offset nor a time"),
        ("as=pdf", 400, "it is one of auto, json"),
        ("isolation=no", 400, "it is one of read_uncommitted"),
        ("partition=9", 400, "it is a whole number from 0 to 2"),
        ("partition=0&at=99", 200, "Offset 99 is not written yet: clicks-0 has offsets 0 to 39."),
    ],
)
def test_what_there_is_not_is_said(browser: TestClient, topic: str, asked: str, status: int, said: str) -> None:
    answer = browser.get(f"/topics/{topic}/records?{asked}")
    assert answer.status_code == status
    assert said in text_of(answer.text)


def test_a_record_has_a_page_of_its_own_beside_its_neighbours(browser: TestClient, topic: str) -> None:
    page = browser.get(f"/topics/{topic}/1/records/5").text
    for said in ("value 16", "key 16", "1970-01-01T00:16:00.000Z", "zstd", "--partition=1 --from 5 --count 1"):
        assert said in text_of(page)
    assert (link(page, "4"), link(page, "6")) == ("4", "6")
    assert "clicks-1 has offsets 0 to 39" in text_of(browser.get(f"/topics/{topic}/1/records/40").text)


def test_hostile_records_are_text_in_small_pages(browser: TestClient, client: seglog.Client) -> None:
    client.create_topic("strange", config={"max.message.bytes": 20_000_000})
    with client.producer("strange", compression="zstd", batch_bytes=11_000_000) as producer:
        for name, content in HOSTILE.items():
            producer.send(content, key=content[:10_000], headers=[(f"<b>{name}", content[:5000])] * 1000)
        for _ in range(60):
            producer.send(HOSTILE["quotes"][:50_000], key=b"<" * 900, headers=[("&" * 300, b'"' * 300)] * 9)
    everything = "/topics/strange/records?at=earliest&order=newer"
    pages = [browser.get(f"{everything}&as={kind}") for kind in ("auto", "json", "text", "hex", "msgpack")]
    pages += [browser.get("/topics/strange/records")]
    pages += [browser.get(f"/topics/strange/0/records/{offset}") for offset in range(len(HOSTILE) + 1)]
    for page in pages:
        assert page.status_code == 200
        assert len(page.content) <= 100_000
        assert "<script>alert" not in page.text
        assert "<b>" not in page.text
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", page.text)
    assert len(offsets(pages[5].text)) == 50


def test_tombstones_markers_and_aborted_records_are_named(browser: TestClient, client: seglog.Client) -> None:
    client.create_topic("paid")
    with client.producer("paid") as producer:
        producer.send(None, key=b"gone")
    with client.transaction("kept") as txn:
        txn.send("paid", "kept")
    with suppress(ZeroDivisionError), client.transaction("aborted") as txn:
        txn.send("paid", "aborted").result()
        raise ZeroDivisionError
    page = text_of(browser.get("/topics/paid/records?at=0").text)
    assert "gone tombstone" in page
    assert re.search(r"kept .* transaction 0:2 no record: the end of a transaction 0:3 .* none aborted .*, trans", page)
    assert "0:4 no record: the end of a transaction" in page
    page = text_of(browser.get("/topics/paid/records?at=0&isolation=read_committed").text)
    assert "0:2 to 4: no record: the end of a transaction, or records of one that was aborted" in page


def test_offsets_that_compaction_has_emptied_are_named() -> None:
    data = encode_batch([(0, b"k", b"1", ()), (0, b"k", b"2", ())])
    header = parse_header(data)._replace(base_offset=10, last_offset_delta=5)
    rows = list(rows_of_batch(FetchedBatch("t", 0, header, memoryview(data), 10, 16)))
    assert [(row.start_offset, row.end_offset, row.why) for row in rows] == [
        (10, 11, ""),
        (11, 12, ""),
        (12, 16, "compacted"),
    ]


def test_damage_says_what_cannot_be_read_and_what_is_behind_it_is_shown(damaged: Broker) -> None:
    with TestClient(application(Console(damaged.address, has_token=False)), base_url="http://localhost") as browser:
        page = browser.get("/topics/t/records?at=0").text
        assert offsets(page) == ["0:0", "0:2"]
        assert "0:1 offsets 1 to 1 are damaged on disk" in text_of(page)
        assert "seglogd check" in page
        assert "goes on behind it, at offset 2" in text_of(browser.get("/topics/t/0/records/1").text)


def test_a_topic_that_is_followed_streams_its_newest_records(browser: TestClient, server: Broker, topic: str) -> None:
    assert offsets(streamed(server, f"/topics/{topic}/records", "follow=1&live"))[:2] == ["2:39", "1:39"]
    assert "<div data-live></div>" in browser.get(f"/topics/{topic}/records").text, "no stream is asked for"


def test_what_comes_to_a_topic_that_is_followed_stands_above_whatever_its_time(
    server: Broker, client: seglog.Client
) -> None:
    client.create_topic("late", 2, config={"retention.ms": -1})

    def send(value: str, partition: int, hour: int) -> None:
        with client.producer("late") as producer:
            producer.send(value, partition=partition, timestamp=hour * HOUR)

    async def look() -> list[list[Any]]:
        console = Console(server.address, has_token=False)
        app, seen = application(console), []
        async with app.router.lifespan_context(app):
            session = console.sessions.open(await console.shared(), is_own_viewer=False)
            scope = {"type": "http", "query_string": b"follow=1", "path_params": {"topic": "late"}, "headers": []}
            view = View(Request(scope), console, session)
            for value, partition, hour in (("newest", 0, 9), ("older", 1, 3), ("oldest", 0, 1)):
                await asyncio.to_thread(send, value, partition, hour)
                seen.append([row.record.value for row in (await context(view))["rows"]])
        return seen

    assert asyncio.run(look())[-1] == [b"oldest", b"older", b"newest"]
