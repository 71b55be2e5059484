"""``seglog queue list | describe | alter | peek | redrive``: share groups, their jobs, and their dead letters."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import Group, Option, flag
from seglog.cli.common import answer, answer_table, print_json, warn
from seglog.cli.exits import FAILED, OK, InputError, UsageError
from seglog.cli.option_types import COUNT, GROUP_NAME, PAIR
from seglog.cli.parameters import client_command
from seglog.cli.tables import named, print_table
from seglog.cli.terminal import print_line
from seglog.core.errors import count_of
from seglog_protocol.errors import AuthorizationError, RequestError
from seglog_protocol.texts import printable, shortened

if TYPE_CHECKING:
    from seglog.client import Client
    from seglog.core.records import Record
    from seglog.producer import Producer
    from seglog_protocol.dead_letters import DeadLetterOrigin
    from seglog_protocol.messages import ExplainReply

_COUNTED: Final = {
    "waiting": ("records_waiting",),
    "in_flight": ("records_in_flight",),
    "done": ("accepted_total",),
    "dead": ("rejected_total", "exceeded_total"),
}
"""The families of metrics, without ``seglog_share_``, whose sum a column is."""

_SHOWN_MAX: Final = 40
_BATCH: Final = 500
"""Dead letters that are sent back before that is committed."""


# --- Looking ----------------------------------------------------------------------------------------------------------


def _list(client: "Client", options: Options) -> int:
    from seglog.core.share_groups import list_share_groups

    counts = _counts(client)
    shown, rows = [], []
    for name, state in client.converse(list_share_groups()):
        found = {column: int(sum(counts.get((each, name), 0) for each in names)) for column, names in _COUNTED.items()}
        found = found if ("records_waiting", name) in counts else {}  # of very many the largest have metrics
        shown.append({"queue": name, "state": state, **found})
        rows.append((named(name), state, *(found.get(column, "-") for column in _COUNTED)))
    return answer_table(options, shown, ("QUEUE", "STATE", ">WAITING", ">IN FLIGHT", ">DONE", ">DEAD"), rows)


def _counts(client: "Client") -> dict[tuple[str, str], Any]:
    """What metrics say of all partitions of a queue, by family and queue; empty for who may not see metrics."""
    counts: dict[tuple[str, str], Any] = defaultdict(int)
    try:
        families = client.samples([f"seglog_share_{name}" for names in _COUNTED.values() for name in names])
    except AuthorizationError as error:
        warn(f"note: there are no numbers: {error.message}")
        return {}
    for family in families:
        for sample in family.samples:
            counts[family.name.removeprefix("seglog_share_"), sample.labels[0]] += sample.value
    return counts


def _describe(client: "Client", options: Options) -> int:
    from seglog.core.share_groups import describe_share_group, settings_of

    group = client.converse(describe_share_group(options.queue))
    found = client.converse(settings_of(options.queue))
    settings = {name: value for name, (value, is_own) in found.items() if is_own}
    partitions = [
        {"topic": each.topic, "partition": each.partition, **_facts(each)} for each in _places(client, options.queue)
    ]
    members = [
        {
            "member": member.member_id,
            "client": member.client_id,
            "host": member.client_host.removeprefix("/"),
            "assigned": [
                f"{each.topic_name}-{n}" for each in member.assignment.topic_partitions for n in each.partitions
            ],
        }
        for member in group.members
    ]
    if options.json:
        facts = {"queue": options.queue, "state": group.group_state, "settings": settings}
        print_json(facts | {"partitions": partitions, "members": members})
        return OK
    print_line(f"{printable(options.queue)}: {group.group_state}, {count_of(len(members), 'member')}")
    for name, value in settings.items():
        print_line(f"  {name}={printable(value)}")
    titles = ("TOPIC", ">PARTITION", ">START", ">WAITING", ">IN FLIGHT", ">ARCHIVING")
    print_table(titles, [["-" if cell is None else cell for cell in each.values()] for each in partitions])
    if members:
        rows = [(each["member"], named(each["client"]), each["host"], ", ".join(each["assigned"])) for each in members]
        print_table(("MEMBER", "CLIENT", "HOST", "ASSIGNED"), rows)
    return OK


def _facts(reply: "ExplainReply") -> dict[str, Any]:
    """The numbers of a partition."""
    told = reply.delivery
    assert told is not None
    counts = {"waiting": told.waiting, "in_flight": told.acquired, "archiving": told.archiving}
    return {"start": told.start_offset} | counts


def _places(client: "Client", queue: str) -> "list[ExplainReply]":
    """The partitions of a queue. Raises UnknownGroupError."""
    from seglog.core.share_groups import places_of

    return [client.explain.delivery(topic, partition, queue) for topic, partition in client.converse(places_of(queue))]


# --- Settings ---------------------------------------------------------------------------------------------------------


def _alter(client: "Client", options: Options) -> int:
    from seglog.core.kafka_requests import set_group_config

    values = dict(options.config) | dict.fromkeys(options.reset)
    if not values:
        raise UsageError("there is nothing to change: give --config or --reset")
    client.converse(set_group_config(options.queue, values))
    return answer(options, {"queue": options.queue, "config": values}, f"{printable(options.queue)}: changed")


# --- Jobs and dead letters --------------------------------------------------------------------------------------------


def _peek(client: "Client", options: Options) -> int:
    from seglog.cli.envelope import to_map

    found = _newest_letters(client, options) if options.dead else _waiting(client, options.queue)
    shown, rows = [], []
    for record, facts in islice(found, options.count):
        shown.append(to_map(record) | facts)
        texts = [
            "-" if data is None else shortened(printable(data.decode(errors="replace")), _SHOWN_MAX)
            for data in record[4:6]
        ]
        rows.append((f"{named(record.topic)}-{record.partition}", record.offset, *texts, *facts.values()))
    titles = (">TRIES", "OF", "WHY") if options.dead else (">TRIES",)
    return answer_table(options, shown, ("RECORD", ">OFFSET", "KEY", "VALUE", *titles), rows)


def _waiting(client: "Client", queue: str) -> "Iterator[tuple[Record, dict[str, Any]]]":
    """The records of a queue that no member has, and how often each was delivered."""
    for place in _places(client, queue):
        start = None if place.delivery is None else place.delivery.start_offset
        if start is None:
            warn(
                f"{place.topic}-{place.partition}: no member has fetched yet, so it is not known where the queue begins"
            )
            continue
        with client.consumer(place.topic, partitions=[place.partition], start={place.partition: start}) as consumer:
            for record in consumer:
                told = client.explain.delivery(place.topic, place.partition, queue, record.offset).delivery
                if told is not None and told.state in (None, "available"):
                    yield record, {"tries": told.delivery_count or 0}


def _topic_of_letters(client: "Client", queue: str) -> str:
    """The topic of the dead letters of a queue. Raises InputError where it has none."""
    from seglog.core.share_groups import DEAD_LETTERS, settings_of

    topic, _ = client.converse(settings_of(queue))[DEAD_LETTERS]
    if not topic:
        raise InputError(f"{queue} has no dead letters: set {DEAD_LETTERS}, as by `seglog queue alter`")
    return topic


def _newest_letters(client: "Client", options: Options) -> "Iterator[tuple[Record, dict[str, Any]]]":
    """The dead letters of a queue among the newest of each partition."""
    topic = _topic_of_letters(client, options.queue)
    start = {each.partition: max(each.earliest, each.latest - options.count) for each in client.offsets(topic)}
    with client.consumer(topic, start=start) as consumer:
        for record in consumer:
            if (origin := _origin(record, options.queue)) is not None:
                place = f"{origin.topic}-{origin.partition} offset {origin.offset}"
                yield record, {"tries": origin.delivery_count, "of": place, "why": origin.message}


def _origin(record: "Record", queue: str) -> "DeadLetterOrigin | None":
    """The origin of a dead letter; None of anything else, and of those of other queues."""
    from seglog_protocol.dead_letters import read_origin

    origin = read_origin(record.headers)
    return origin if origin is not None and origin.group == queue else None


def _redrive(client: "Client", options: Options) -> int:
    """Send dead letters back; 1 where a record is gone, and its letter has no copy."""
    counts = {"sent": 0, "passed_over": 0, "gone": 0}
    topic = _topic_of_letters(client, options.queue)
    with (
        ExitStack() as closing,
        client.consumer(topic, group=f"{options.queue}.redrive", follow=False, auto_commit=False) as consumer,
    ):
        producers: dict[str, Producer] = {}

        def commit() -> None:
            for producer in producers.values():
                producer.flush()
            if not options.dry_run:
                consumer.commit()

        for letter in consumer:
            origin = _origin(letter, options.queue)
            if origin is None or (options.reason or "") not in origin.message:
                counts["passed_over"] += 1
            elif (record := _original(client, letter, origin)) is None:
                counts["gone"] += 1
                warn(f"{origin.topic}-{origin.partition} has no record at offset {origin.offset} any more")
            else:
                counts["sent"] += 1
                if not options.dry_run:
                    if origin.topic not in producers:
                        producers[origin.topic] = closing.enter_context(client.producer(origin.topic))
                    producer = producers[origin.topic]
                    producer.send(record.value, key=record.key, headers=record.headers, partition=origin.partition)
            if sum(counts.values()) % _BATCH == 0:
                commit()
            if counts["sent"] == options.count:
                break
        commit()
    told = (
        f"{count_of(counts['sent'], 'job')} sent back, {counts['passed_over']:,} passed over, {counts['gone']:,} gone"
    )
    answer(options, {"queue": options.queue, **counts}, f"{printable(options.queue)}: {told}")
    return FAILED if counts["gone"] else OK


def _original(client: "Client", letter: "Record", origin: "DeadLetterOrigin") -> "Record | None":
    """The record of a dead letter with its headers, which letters have not; else the letter if it has a copy."""
    place = {origin.partition: origin.offset}
    with suppress(RequestError):  # OffsetOutOfRangeError, UnknownTopicError
        with client.consumer(origin.topic, partitions=[origin.partition], start=place) as consumer:
            found = next(iter(consumer), None)
        if found is not None and found.offset == origin.offset:
            return found
    return None if letter.key is None and letter.value is None else letter._replace(headers=())


def _queue(**attributes: Any) -> click.Argument:
    return click.Argument(["queue"], type=GROUP_NAME, metavar="QUEUE", help="Name of the share group.", **attributes)


def _count(what: str, **attributes: Any) -> Option:
    return Option(["--count"], type=COUNT, help=f"{what} so many at most.", **attributes)


COMMAND: Final = Group(
    "queue",
    [
        client_command(
            "list", _list, "List queues (share groups): what waits, is in flight, and became of jobs so far."
        ),
        client_command("describe", _describe, "Show the settings, partitions and workers of a queue.", _queue()),
        client_command(
            "alter",
            _alter,
            "Change the settings of a queue; the next requests of its workers go by them.",
            _queue(),
            Option(["--config"], type=PAIR, multiple=True, help="Set a value; repeatable."),
            Option(["--reset"], multiple=True, metavar="KEY", help="Go back to the broker's value; repeatable."),
            example="seglog queue alter workers --config errors.deadletterqueue.topic.name=dlq.jobs",
        ),
        client_command(
            "peek",
            _peek,
            "Show jobs that wait, without taking them, or the newest dead letters and why they are dead.",
            _queue(),
            flag("--dead", "Show dead letters."),
            _count("Show", default=10),
        ),
        client_command(
            "redrive",
            _redrive,
            "Send the jobs of dead letters back to their topics.\n\n"
            "It goes on where the last run has ended, as the group QUEUE.redrive has committed; `seglog group reset` "
            "moves that. A run that is cut off may send some again. It exits with 1 where a job is there no more.",
            _queue(),
            _count("Send"),
            Option(["--reason"], metavar="TEXT", help="Pass over those whose reason does not have this text."),
            flag("--dry-run", "Only count them."),
            example="seglog queue redrive workers --reason rejected --count 100",
        ),
    ],
)
