"""Pages of groups and queues."""

import html
import re
from collections.abc import Iterator

import pytest

import seglog
from seglog.testing import Broker
from tests.unit.clients.console.conftest import CommandsHere, Visitor


@pytest.fixture(scope="module")
def server() -> Iterator[Broker]:
    with Broker(group_share_assignment_interval_ms=0, errors_deadletterqueue_auto_create_topics_enable=True) as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def groups(server: Broker, client: seglog.Client) -> None:
    """A group that has read a part of a topic, one that lost records, and one with a name of any kind."""
    client.create_topic("orders", 2)
    for number in range(10):
        with client.producer("orders") as producer:
            producer.send(f"job {number}".encode(), key=b"k")
    [partition] = [each.partition for each in client.offsets("orders") if each.latest]
    client.reset_group("behind", 4, {"orders": [partition]})
    client.reset_group("lost", 0, {"orders": [partition]})
    client.reset_group("<b>/?\n&", 2, {"orders": [partition]})
    client.truncate_topic("orders", {partition: 2})


def test_groups_are_listed_by_name_with_what_each_has_left(visitor: Visitor) -> None:
    page = visitor.see("/groups")
    assert page.index("<b>/?") < page.index("behind Empty") < page.index("lost Empty")
    assert "No queues yet" in page
    assert "lost Empty" in (found := visitor.see("/groups?q=lo"))
    assert "behind Empty" not in found
    assert "No more groups whose names begin with zz" in visitor.see("/groups?q=zz")


def test_a_group_says_what_is_wrong_first_and_the_way_out(visitor: Visitor) -> None:
    page = visitor.see("/groups/lost")
    assert page.index("Problems") < page.index("below the earliest offset, 2") < page.index("Reset the offset")
    page = visitor.see("/groups/behind")
    assert "Problems" not in page
    assert "4 10 6" in page
    assert "for 6 d 23 h to 7 d" in page
    visitor.see("/groups/nobody")
    assert visitor.status == 404


def test_a_name_of_any_kind_is_text_in_pages_and_stays_itself_in_forms(
    visitor: Visitor, commands: CommandsHere
) -> None:
    visitor.see("/groups")
    assert 'href="/groups/%3Cb%3E/%3F%0A%26"' in visitor.html
    page = visitor.see("/groups/%3Cb%3E/%3F%0A%26")
    assert "<b>" not in visitor.html
    assert r"<b>/? &" in page
    visitor.send("/change/group-reset", to="latest", topics="")
    assert commands.ran[-1][2:] == ["group", "reset", "<b>/?\n&", "--to", "latest", "--all-topics"]
    page = visitor.send("/change/group-reset")
    assert "ended well" in page
    assert r"<b>/? & Empty" in page


def test_a_group_is_reset_behind_a_dry_run_and_deleted(
    visitor: Visitor, client: seglog.Client, commands: CommandsHere
) -> None:
    visitor.see("/groups/lost")
    page = visitor.send("/change/group-reset", to="-1h", topics="orders:0")
    assert "--to -1h --topic orders:0 --execute" in page
    assert "nothing is changed" in page
    assert "OLD NEW CHANGE" in page
    assert [ran[-1] for ran in commands.ran] == ["orders:0"]
    page = visitor.send("/change/group-reset")
    assert commands.ran[-1][-1] == "--execute"
    assert "1 offset committed" in page
    visitor.see("/groups/lost")
    visitor.send("/change/group-delete")
    assert "lost: deleted" in visitor.send("/change/group-delete")
    assert "lost" not in [each.group for each in client.groups()]


def test_a_queue_shows_jobs_that_wait_and_are_in_flight_and_dead_letters(
    visitor: Visitor, client: seglog.Client, commands: CommandsHere
) -> None:
    visitor.see("/queues/work")
    assert visitor.status == 404
    with client.queue("orders", group="work", start="earliest", prefetch=2) as jobs:
        job = next(iter(jobs))
        page = visitor.see("/queues/work")
        assert "Queue, Stable, 1 member" in page
        assert "Jobs in flight, by the members that have most" in page
        assert "It keeps none: errors.deadletterqueue.topic.name" in page
        visitor.send("/change/queue-alter", key="errors.deadletterqueue.topic.name", value="dlq.work")
        assert "work: changed" in visitor.send("/change/queue-alter")
        job.reject()
        jobs.flush()
    page = visitor.see("/queues/work")
    [waiting] = re.findall(r'href="([^"]+records[?]at=[^"]+)"', visitor.html)
    assert "job 9" in visitor.see(html.unescape(waiting))
    while "1 match;" not in visitor.see("/topics/dlq.work/search?find=work"):
        pass
    visitor.see("/queues/work")
    assert "/topics/dlq.work/search?find=work" in visitor.html
    page = visitor.send("/change/queue-redrive", count="5", reason="")
    assert "--count 5" in page
    assert commands.ran[-1][-1] == "--dry-run"
