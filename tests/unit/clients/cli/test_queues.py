"""``seglog queue``, with a real broker: what it prints, and what comes of dead letters."""

import json
from collections.abc import Iterator
from typing import Final

import pytest

import seglog
from seglog.cli.exits import FAILED, OK
from seglog.testing import Broker
from tests.unit.clients.cli.conftest import Said

REFUSED: Final = 4
LETTERS: Final = "errors.deadletterqueue.topic.name=dlq.jobs"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    with Broker(group_share_assignment_interval_ms=0, errors_deadletterqueue_auto_create_topics_enable=True) as started:
        monkeypatch.setenv("SEGLOG_SERVER", started.address)
        yield started


@pytest.fixture
def client(broker: Broker) -> Iterator[seglog.Client]:
    with seglog.connect(broker.address) as client:
        client.create_topic("jobs", 1)
        with client.producer("jobs") as producer:
            for text in "abcdef":
                producer.send(text, key=f"key-{text}", headers={"for": text})
        yield client


def take(queue: seglog.Queue, count: int) -> list[seglog.Job]:
    jobs = [queue.get(600) for _ in range(count)]
    return [job for job in jobs if job is not None]


def test_the_numbers_of_a_queue_are_those_of_all_its_partitions(client: seglog.Client, said: Said) -> None:
    client.create_topic("pairs", 2)
    with client.producer("pairs") as producer:
        for partition in range(2):
            producer.send("job", partition=partition)
    with client.queue("pairs", group="workers", start="earliest", prefetch=0) as queue:
        assert len(take(queue, 2)) == 2
        assert said(OK, "queue", "list").splitlines()[1].split() == ["workers", "Stable", "0", "2", "0", "0"]


def test_queues_are_listed_and_described(client: seglog.Client, said: Said) -> None:
    assert said(OK, "queue", "list") == ""
    with client.queue("jobs", group="workers", start="earliest", prefetch=0) as queue:
        jobs = take(queue, 3)
        jobs[0].accept()
        jobs[1].reject()
        queue.flush()
        titles, row = said(OK, "queue", "list").splitlines()
        assert titles.split("  ")[0] == "QUEUE"
        assert row.split() == ["workers", "Stable", "3", "1", "1", "1"]
        [found] = json.loads(said(OK, "queue", "list", "--json"))
        assert found == {"queue": "workers", "state": "Stable", "waiting": 3, "in_flight": 1, "done": 1, "dead": 1}
        described = said(OK, "queue", "describe", "workers").splitlines()
        assert described[:2] == ["workers: Stable, 1 member", "  share.auto.offset.reset=earliest"]
        assert described[3].split() == ["jobs", "0", "2", "3", "1", "0"]
        assert described[5].split()[1:] == ["seglog-python", "127.0.0.1", "jobs-0"]
        told = json.loads(said(OK, "queue", "describe", "--json", "workers"))
        place = {"topic": "jobs", "partition": 0, "start": 2, "waiting": 3, "in_flight": 1, "archiving": 0}
        assert told["partitions"] == [place]
        assert told["members"][0]["assigned"] == ["jobs-0"]
    assert "Empty, 0 members" in said(OK, "queue", "describe", "workers")
    assert "absent" in said(REFUSED, "queue", "describe", "absent")


def test_settings_are_changed(client: seglog.Client, said: Said) -> None:
    with client.queue("jobs", group="workers"):
        assert said(OK, "queue", "alter", "workers", "--config", "share.delivery.count.limit=3") == "workers: changed\n"
        assert "  share.delivery.count.limit=3\n" in said(OK, "queue", "describe", "workers")
        said(OK, "queue", "alter", "workers", "--reset", "share.delivery.count.limit")
        assert "share.delivery" not in said(OK, "queue", "describe", "workers")
        assert "share.delivery.count.limit" in said(
            REFUSED, "queue", "alter", "workers", "--config", "share.delivery.count.limit=many"
        )


def test_jobs_that_wait_are_shown_and_not_taken(client: seglog.Client, said: Said) -> None:
    with client.queue("jobs", group="workers", start="earliest", prefetch=0) as queue:
        first, second = take(queue, 2)
        first.release()
        queue.flush()
        rows = [line.split() for line in said(OK, "queue", "peek", "workers", "--count", "3").splitlines()]
        assert rows[0] == ["RECORD", "OFFSET", "KEY", "VALUE", "TRIES"]
        assert rows[1:] == [
            ["jobs-0", "0", "key-a", "a", "1"],
            ["jobs-0", "2", "key-c", "c", "0"],
            ["jobs-0", "3", "key-d", "d", "0"],
        ]
        assert len(json.loads(said(OK, "queue", "peek", "workers", "--json"))) == 5
        second.accept()


def test_dead_letters_are_shown_and_sent_back(client: seglog.Client, said: Said) -> None:
    assert "no dead letters" in said(FAILED, "queue", "redrive", "workers")
    said(OK, "queue", "alter", "workers", "--config", LETTERS, "--config", "share.delivery.count.limit=2")
    with client.queue("jobs", group="workers", start="earliest", prefetch=0) as queue:
        for _ in range(2):
            jobs = take(queue, 1)
            jobs[0].release()
            queue.flush()
        for job in take(queue, 3):
            job.reject()
        queue.flush()
        while len(json.loads(said(OK, "queue", "peek", "workers", "--dead", "--json"))) < 4:
            queue.get(0.05)  # they are written behind the answer
        rows = said(OK, "queue", "peek", "workers", "--dead").splitlines()
        assert "jobs-0 offset 0  Offset delivery count exceeded" in rows[1]
        assert "jobs-0 offset 1  Offset rejected by client" in rows[2]
        told = said(OK, "queue", "redrive", "workers", "--reason", "rejected", "--dry-run")
        assert told == "workers: 3 jobs sent back, 1 passed over, 0 gone\n"
        told = said(OK, "queue", "redrive", "workers", "--reason", "rejected", "--count", "1")
        assert told == "workers: 1 job sent back, 1 passed over, 0 gone\n"
        told = said(OK, "queue", "redrive", "workers")
        assert told == "workers: 2 jobs sent back, 0 passed over, 0 gone\n", "it goes on where it was"
        assert said(OK, "queue", "redrive", "workers") == "workers: 0 jobs sent back, 0 passed over, 0 gone\n"
        again = {job.offset: job for job in take(queue, 5)}
        assert [again[offset].value for offset in (6, 7, 8)] == [b"b", b"c", b"d"]
        assert again[6][4:] == (b"key-b", b"b", (("for", b"b"),))
        for job in again.values():
            job.accept()
        queue.flush()


def test_what_is_gone_is_not_sent_back(client: seglog.Client, said: Said) -> None:
    said(OK, "queue", "alter", "workers", "--config", LETTERS)
    with client.queue("jobs", group="workers", start="earliest", prefetch=0) as queue:
        take(queue, 1)[0].reject()
        queue.flush()
        while not json.loads(said(OK, "queue", "peek", "workers", "--dead", "--json")):
            queue.get(0.05)
    client.truncate_topic("jobs", {0: 3})
    told = said(FAILED, "queue", "redrive", "workers")
    assert "workers: 0 jobs sent back, 0 passed over, 1 gone" in told
    assert "jobs-0 has no record at offset 0 any more" in told
