"""The list of topics, one topic drawn, one segment, and a seek."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import seglog
from seglog import raw
from seglog.testing import Broker
from seglog_console import segment
from seglog_console.pages import ROWS
from seglog_console.viewer import KEPT_MAX, Viewer, pause_after
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.messages import ConfigValue
from tests.unit.clients.console.conftest import text_of

NOW = int(time.time() * 1000)
DAYS: dict[str, ConfigValue] = {"retention.ms": "2h", "segment.bytes": 50_000, "segment.ms": "3650d"}


@pytest.fixture(scope="module")
def commits(client: seglog.Client) -> str:
    """A topic of three partitions; in the first are five segments of ten batches, of two codecs, a minute apart."""
    client.create_topic("commits", 3, DAYS)
    for number in range(50):
        with client.producer("commits", compression="zstd" if number % 2 else "none") as producer:
            for record in range(10):
                at = NOW - 3_600_000 + number * 60_000 + record
                producer.send(b"%d" % number * 450, timestamp=at, partition=0)
    client.reset_group("billing", 30, {"commits": None})
    return "commits"


def look(browser: TestClient, address: str, status: int = 200) -> str:
    """The page, which is small and no image of what others wrote."""
    answer = browser.get(address)
    assert answer.status_code == status, text_of(answer.text)
    assert len(answer.content) < 100_000
    return answer.text


# --- The list ---------------------------------------------------------------------------------------------------------


def test_topics_are_listed_with_what_is_their_own(browser: TestClient, commits: str) -> None:
    page = text_of(look(browser, "/topics"))
    assert re.search(r"commits 3 \d+ [\d.]+ kB \S+ 2 h \d+ min to 2 h \d+ min, configured 2 h", page)
    assert "retention.ms=7200000 (2 hours), segment.bytes=50000, segment.ms=315360000000 (3650" in page


def test_a_page_has_fifty_topics_and_leads_to_the_next(browser: TestClient, client: seglog.Client) -> None:
    for number in range(ROWS + 2):
        client.create_topic(f"many-{number:02}", 1)
    page = look(browser, "/topics?q=many-")
    assert len(re.findall(r'href="/topics/many-\d\d"', page)) == ROWS
    [following] = re.findall(r'href="(/topics\?[^"]*after=[^"]*)">Next', page)
    rest = look(browser, following.replace("&amp;", "&"))
    assert re.findall(r'href="/topics/(many-\d\d)"', rest) == ["many-50", "many-51"]
    assert "Next topics" not in rest


@pytest.mark.parametrize(("prefix", "found"), [("many-0", 10), ("many-07", 1), ("many-1%00", 0), ("ü", 0), ("zz", 0)])
def test_a_prefix_finds_the_topics_that_begin_with_it(browser: TestClient, prefix: str, found: int) -> None:
    assert len(re.findall(r'href="/topics/many-', look(browser, f"/topics?q={prefix}"))) == found


# --- One topic --------------------------------------------------------------------------------------------------------


def test_a_topic_is_drawn_with_its_groups_and_its_segments_are_links(browser: TestClient, commits: str) -> None:
    page = look(browser, "/topics/commits")
    bases = re.findall(r'<a href="/topics/commits/0/segments/(\d+)"', page)
    assert bases[0] == "0"
    assert len(bases) >= 5
    words = text_of(page)
    assert "A billing: " in words
    assert "retention: what is older may go" in words
    assert "configured: 2 h" in words
    assert "retention.ms=7200000" in words
    assert 'role="group" aria-label="commits, 3 partitions over the time of records"' in page


def test_a_partition_has_a_bar_for_each_segment_and_says_why_it_is_here(browser: TestClient, commits: str) -> None:
    words = text_of(look(browser, "/topics/commits?partition=0"))
    assert "by size" in words
    assert "retention.ms = 7200000 (2 h) keeps it" in words
    assert "MAY GO" in words


def test_of_many_partitions_a_page_has_some(browser: TestClient, client: seglog.Client) -> None:
    client.create_topic("wide", 30)
    first, second = look(browser, "/topics/wide"), look(browser, "/topics/wide?page=1")
    assert "1 to 25 of 30 partitions" in text_of(first)
    assert "26 to 30 of 30 partitions" in text_of(second)
    assert [f"?partition={n}" in second for n in (24, 25, 29)] == [False, True, True]


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/topics/nothing", 404),
        ("/topics/commits?partition=3", 400),
        ("/topics/commits?partition=x", 400),
        ("/topics/commits?page=1", 400),
        ("/topics/commits/0/segments/7", 404),
        ("/topics/commits/9/segments/0", 404),
        ("/topics/commits/9/seek", 400),
        ("/topics/commits/0/seek?at=soon", 400),
        ("/topics/commits/0/seek?at=latest", 400),
    ],
)
def test_what_is_not_there_is_an_error_that_says_so(
    browser: TestClient, commits: str, address: str, status: int
) -> None:
    look(browser, address, status)


def test_pages_share_what_they_ask_for_and_ask_again_when_it_is_old() -> None:
    async def ask_twice() -> list[Any]:
        viewer = Viewer(None, asyncio.Event())  # type: ignore[arg-type]
        asked: list[None] = []

        async def ask() -> int:
            asked.append(None)
            if len(asked) == 2:
                raise ValueError("not now")
            return len(asked)

        first = await asyncio.gather(*(viewer.shared("it", ask, seconds=3600) for _ in range(3)))
        viewer._answers["it"].due = 0
        with pytest.raises(ValueError, match="not now"):
            await viewer.shared("it", ask)
        third = await viewer.shared("it", ask)
        for number in range(KEPT_MAX + 50):
            await viewer.shared(number, ask, seconds=3600)
        kept = len(viewer._answers)
        for answer in viewer._answers.values():
            answer.due = 0
        await viewer.shared("another", ask)
        return [first, third, kept, list(viewer._answers)]

    assert asyncio.run(ask_twice()) == [[1, 1, 1], 3, KEPT_MAX, ["another"]]


def test_what_takes_long_is_asked_less_often_and_a_restart_holds_up_no_later_answer() -> None:
    assert [pause_after(took, 2.0) for took in (0.01, 0.25, 60.0)] == [2.0, 5.0, 10.0]
    assert pause_after(60.0, 3600.0) == 3600.0


# --- One segment ------------------------------------------------------------------------------------------------------


def test_a_small_segment_is_shown_whole(browser: TestClient, commits: str) -> None:
    page = look(browser, "/topics/commits/0/segments/0")
    words = text_of(page)
    assert re.search(r"all of its \d+ batches; \d+ of \d+ entries of its index", words)
    for row in ("index entries: ", "none batches: ", "zstd batches: ", "records in a kilobyte: "):
        assert row in words
    assert "rolled size" in words
    assert 'href="/topics/commits/0/seek?at=0"' in page


def test_a_large_segment_is_sampled(browser: TestClient, client: seglog.Client) -> None:
    client.create_topic("large", 1, {"segment.bytes": "64MiB"})
    value = bytes(range(256)) * 200
    batches = [raw.RawBatch("large", 0, encode_batch([(NOW + n, None, value, ())])) for n in range(100)]
    raw.append(client, batches)
    assert 100 * len(value) > segment.WHOLE_BYTES_MAX
    words = text_of(look(browser, "/topics/large/0/segments/0"))
    assert f"sampled at {segment.PLACES} places: {segment.PLACES} batches" in words
    assert "none batches: 48" in words


def test_a_segment_of_which_nothing_can_be_read_says_so(browser: TestClient, client: seglog.Client) -> None:
    client.create_topic("cut", 1)
    with client.producer("cut") as producer:
        producer.send(b"gone")
    client.truncate_topic("cut", {0: None})
    base = client.explain.segments("cut", 0).segments[-1].base_offset
    assert "none of its records can be read" in text_of(look(browser, f"/topics/cut/0/segments/{base}"))


def test_behind_damage_a_segment_and_its_topic_are_still_drawn(
    browser: TestClient, server: Broker, client: seglog.Client
) -> None:
    client.create_topic("hurt", 1)
    for _ in range(5):
        raw.append(client, [raw.RawBatch("hurt", 0, encode_batch([(NOW, None, b"x" * 1000, ())]))])
    with (Path(server.directory) / "hurt-0" / f"{0:020}.log").open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(2 * size // 5 + 200)
        file.write(b"damage")
    words = text_of(look(browser, "/topics/hurt/0/segments/0"))
    assert "all of its 4 batches" in words
    assert "offsets 2 to 2 are damaged on disk" in words
    assert re.search(r"damaged batches: 1, of (1.0\d kB) to \1", words)
    assert "none batches: 4" in words


# --- A seek -----------------------------------------------------------------------------------------------------------


def test_a_seek_is_drawn_step_by_step_with_the_equal_command(browser: TestClient, commits: str) -> None:
    assert "Seek" in text_of(look(browser, "/topics/commits/0/seek"))
    words = text_of(look(browser, "/topics/commits/0/seek?at=123"))
    assert "at or below offset 123" in words
    assert re.search(r"The batch has offsets \d+ to \d+", words)
    assert re.search(r"seglog --server [\d.:]+ explain seek commits 0 --offset=123 --picture", words)
    by_time = text_of(look(browser, "/topics/commits/0/seek?at=-30m"))
    assert ".timeindex" in by_time
    assert re.search(r"explain seek commits 0 --timestamp=@\d+ --picture", by_time)
