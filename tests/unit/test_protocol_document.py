"""docs/PROTOCOL.md and MESSAGES.md against the code: all messages, fields, errors, limits, and each byte of them."""

import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgpack
import pytest
import trio
import trio.testing

from scripts import message_tables
from seglog_broker.api.broker import Broker
from seglog_broker.api.explain import SEGMENTS_SHOWN_MAX
from seglog_broker.config import load_config
from seglog_broker.config.values import PROTOCOLS
from seglog_broker.engine.topics import DESCRIBED_MAX
from seglog_broker.engine.turns import RESULTS_MAX
from seglog_broker.listeners import acceptor, hangup, sender
from seglog_broker.listeners.kafka import carried
from seglog_broker.listeners.native import hello, replies
from seglog_broker.runtime import request_memory
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol import errors, frame_receiver, frames, messages
from seglog_protocol.errors import ClientError, ProtocolError, RequestError, SeglogError
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.frames import Frame, FrameReader, encode_frame, encode_value
from tests.logs import ManualClock
from tests.support import REPOSITORY, each_case, request_of
from tests.unit.broker.listeners.fake_broker import serving
from tests.unit.protocol import golden

MESSAGES: Final = message_tables.page()
PAGE: Final = (REPOSITORY / "docs" / "PROTOCOL.md").read_text(encoding="utf-8") + MESSAGES


def tables() -> Iterator[tuple[str, list[list[str]]]]:
    """(nearest heading, rows) of every table; the first two rows are its head."""
    heading, rows = "", list[list[str]]()
    for line in [*PAGE.splitlines(), ""]:
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            yield heading, rows
            rows = []


def test_no_two_tables_stand_under_one_heading() -> None:
    assert len(list(tables())) == len(ALL_TABLES)


ALL_TABLES: Final = dict(tables())
TABLES: Final = {heading: rows[2:] for heading, rows in ALL_TABLES.items()}


# --- Fields -----------------------------------------------------------------------------------------------------------


def test_the_tables_are_those_of_the_structs() -> None:
    """Every field of every message has a meaning, and no other; a message stands on the page once."""
    meanings = [one for api in message_tables.meanings_by_api().values() for one in api.items()]
    meant = {name: list(fields) for name, fields in meanings}
    assert len(meant) == len(meanings)
    for kind in message_tables.message_classes():
        assert meant.get(kind.__name__, []) == [field.name for field in message_tables.fields(kind)], kind.__name__
        assert [row[0] for row in TABLES.get(kind.__name__, [])] == [
            f"`{name}`" for name in meant.get(kind.__name__, [])
        ]
    assert all(meaning for _, fields in meanings for meaning in fields.values())


def test_no_message_is_documented_that_does_not_exist() -> None:
    kinds = message_tables.message_classes()
    names = {kind.__name__ for kind in kinds}
    with_fields = {kind.__name__ for kind in kinds if message_tables.fields(kind)}
    assert {heading for heading, rows in ALL_TABLES.items() if rows[0][0] == "field"} == with_fields
    assert set(re.findall(r"\b[A-Z][a-z]+(?:Request|Reply|Result|Partition|Description)\b", PAGE)) <= names


def test_every_api_is_listed_with_its_version() -> None:
    listed = [(row[0].strip("`"), int(row[1])) for row in TABLES["The apis"]]
    assert sorted(listed) == [(api, request.version) for api, request in messages.REQUESTS.items()]


# --- Errors -----------------------------------------------------------------------------------------------------------

NOBODYS_FAULT: Final = {
    "BROKER_STOPPING",
    "CONCURRENT_TRANSACTIONS",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "MEMBER_ID_REQUIRED",
    "REBALANCE_IN_PROGRESS",
    "REQUEST_CANCELLED",
    "UNSTABLE_OFFSET_COMMIT",
}


def error_rows() -> list[list[str]]:
    """Code, Kafka's number, fault, retriable and facts of every code, as the error table has them."""
    rows: dict[str, list[str]] = {}
    for kind in errors.WIRE_ERRORS:
        decoded = errors.BY_CODE[kind.code]
        fault = "nobody" if kind.code in NOBODYS_FAULT else "asker"
        if not issubclass(decoded, (RequestError, ProtocolError)) or kind is errors.CoordinatorNotAvailableError:
            fault = "broker"
        relatives = [other for other in errors_of_the_module() if other.code == kind.code]
        facts = dict.fromkeys(name for other in relatives for name in sorted(errors.promised_facts(other)))
        rows[kind.code] = [
            f"`{kind.code}`",
            str(decoded("").kafka_code),
            fault,
            "yes" if decoded.retriable else "no",
            ", ".join(f"`{name}`" for name in facts),
        ]
    return list(rows.values())


def errors_of_the_module() -> list[type[SeglogError]]:
    """Every error that may travel, bases and those that share a code included."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SeglogError)]
    return [kind for kind in kinds if not issubclass(kind, (ClientError, errors.UnknownCodeError))]


def test_the_error_table_is_the_table_of_the_code() -> None:
    rows = TABLES["The error table"]
    assert [row[:5] for row in rows] == error_rows()
    assert all(row[5] for row in rows), "every error has a meaning"


def test_every_code_named_in_the_text_exists() -> None:
    named = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", PAGE))
    assert named - set(PROTOCOLS) <= set(errors.BY_CODE)


# --- Limits -----------------------------------------------------------------------------------------------------------


def test_the_limits_are_those_of_the_code() -> None:
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    actual = {
        "time to say `hello`": f"{hello.SECONDS} s",
        "requests before `hello`, refused ones included": f"{hello.TRIES_MAX}",
        "frame before `hello` is answered": f"{hello.BYTES_MAX:,} bytes",
        "frame": f"{config.socket_request_max_bytes:,} bytes",
        "header": f"{frames.HEADER_BYTES_MAX:,} bytes",
        "items of one list or map of a request": f"{messages.ITEMS_MAX:,}",
        "partitions that one `offsets` asks for, whole topics counted": f"{RESULTS_MAX:,}",
        "topics in a page with `config`; segments in a page": f"{DESCRIBED_MAX:,}",
        f"memory for requests above {frame_receiver.RECEIVE_BYTES:,} bytes, of all connections": (
            f"{config.seglog_request_memory_max:,} bytes"
        ),
        "pace of such a request while others wait for its memory": (
            f"{request_memory.PACE_BYTES:,} bytes a second, after {request_memory.GRACE_SECONDS:g} s"
        ),
        "appends not yet answered, of one connection": f"{sender.APPENDS_IN_FLIGHT_MAX:,}",
        "their payloads together": f"{sender.APPEND_BYTES_IN_FLIGHT_MAX:,} bytes",
        "waiting fetches of one connection": f"{replies.FETCHES_IN_FLIGHT_MAX:,}",
        "waiting requests of Kafka's wire of one connection, each counted with 1,024 bytes or more": (
            f"{carried.WAITING_BYTES_MAX:,} bytes"
        ),
        "partitions in them together": f"{replies.PARTITIONS_WAITING_MAX:,}",
        "batches in one answer to a fetch": f"{config.fetch_max_bytes:,} bytes",
        "wait of a fetch": f"{config.seglog_fetch_max_wait_ms_max:,} ms",
        "connections": f"{config.seglog_connections_max:,}",
        "requests under way when the broker stops": f"{acceptor.DRAIN_SECONDS} s",
        "what the broker still reads and discards after its last frame": f"{hangup.CLOSE_SECONDS_MAX} s",
    }
    assert {row[0]: row[1] for row in TABLES["Limits"]} == actual
    assert DESCRIBED_MAX == SEGMENTS_SHOWN_MAX
    assert config.socket_request_max_bytes == frame_receiver.FRAME_BYTES_MAX
    assert f"port {messages.NATIVE_PORT}" in PAGE


# --- Examples ---------------------------------------------------------------------------------------------------------


class Example(NamedTuple):
    """One frame: what the block is labelled (``request append``), its bytes, and the values written below it."""

    label: str
    data: bytes
    header: dict[str, Any]
    payload: Any  # hex text, or what a msgpack payload holds


def with_bytes(written: Any) -> Any:
    """The same with bytes for texts such as ``0x00ff``."""
    if isinstance(written, dict):
        return {name: with_bytes(value) for name, value in written.items()}
    if isinstance(written, list):
        return [with_bytes(item) for item in written]
    is_bytes = isinstance(written, str) and re.fullmatch(r"0x([0-9a-f]{2})+", written) is not None
    return bytes.fromhex(written[2:]) if is_bytes else written


def examples(page: str) -> list[Example]:
    blocks = re.findall(r"```hex (\w+ \w+)\n(.*?)```\n+```json\n(.*?)```", page, re.DOTALL)
    found = []
    for label, text, values in blocks:
        data = bytes.fromhex("".join(line.partition("#")[0] for line in text.splitlines()))
        written = json.loads(values)
        found.append(Example(label, data, with_bytes(written["header"]), written.get("payload", "")))
    assert len(found) == page.count("```hex "), "every hex block has its values right below"
    return found


EXCHANGE, LOGIN = map(examples, PAGE.split("\n# A login\n"))
EXAMPLES: Final = [*EXCHANGE, *LOGIN]


def reply_class(api: str) -> type[messages.Message]:
    request = messages.REQUESTS[api].__name__
    found: type[messages.Message] = getattr(messages, request.replace("Request", "Reply"))
    return found


def payload_bytes(example: Example) -> bytes:
    return bytes.fromhex(example.payload) if isinstance(example.payload, str) else encode_value(example.payload)


@each_case("example", EXAMPLES, ids=[example.label for example in EXAMPLES])
def test_every_example_is_one_frame_that_holds_the_values_beside_it(example: Example) -> None:
    written = encode_frame(example.header, [payload_bytes(example)])
    assert example.data == written, f"should be {written.hex(' ')}"
    reader = FrameReader()
    reader.receive_data(example.data)
    frame = reader.next_frame()
    assert frame is not None
    assert reader.is_idle
    assert frame.header == example.header
    assert bytes(frame.payload) == payload_bytes(example)
    direction, api = example.label.split()
    if not isinstance(example.payload, str):
        decode: Callable[[Buffer], Sequence[messages.Message]] = messages.decode_segments
        if api == "topics":
            decode = messages.decode_descriptions
        elif api == "samples":
            decode = messages.decode_samples
        assert [entry.to_wire() for entry in decode(frame.payload)] == example.payload
    request_id = frame.header["id"]
    if direction == "request":
        request = messages.open_request(frame.packed).accepted()
        assert request.api == api
        assert messages.request_header(request_id, request_of(frame.header)) == frame.header
    elif direction == "reply":
        assert messages.reply_header(request_id, messages.decode_reply(frame.header, reply_class(api))) == frame.header
    else:
        with pytest.raises(SeglogError) as raised:
            messages.decode_reply(frame.header, messages.Message)
        assert type(raised.value) in errors.WIRE_ERRORS
        assert errors.error_to_wire(raised.value) == frame.header["error"]


def test_every_api_has_an_example_of_its_request_and_its_reply() -> None:
    labels = {example.label for example in EXAMPLES}
    assert {f"{direction} {api}" for api in messages.REQUESTS for direction in ("request", "reply")} <= labels


def test_the_first_example_is_explained_byte_by_byte() -> None:
    explained = re.search(r"```text\n(00 00 00 .*?)```", PAGE, re.DOTALL)
    assert explained is not None
    data = bytes.fromhex("".join(line.partition("  ")[0] for line in explained[1].splitlines()))
    assert data == next(example.data for example in EXAMPLES if example.label == "request hello")


INVENTED: Final = {
    *("topic_id", "topic_ids", "id", "cluster_id", "log_dir", "uptime_ms", "broker"),
    *("quiet_ms", "client_host"),
}


def invented(wire: Any) -> Any:
    """The same without what differs from broker to broker."""
    if isinstance(wire, dict):
        return {name: "..." if name in INVENTED else invented(value) for name, value in wire.items()}
    return [invented(item) for item in wire] if isinstance(wire, list) else wire


async def test_a_broker_answers_the_very_bytes_of_the_page_as_the_page_says(nursery: trio.Nursery) -> None:
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    broker = Broker.open(config, ForgetfulFileSystem(), ManualClock(), InlineOffload())
    broker.groups._machines.new_id = lambda: "5f0c2a1e-0000-4000-8000-000000000001"
    received: dict[int, Frame] = {}
    nursery.start_soon(broker.groups.run)
    nursery.start_soon(broker.transactions.run)
    async with serving(broker) as served:
        peer = await served.connect()
        for example in EXCHANGE:
            request_id = example.header["id"]
            if request_id is None:
                continue  # what ends a connection; tests of the listener have it
            if example.label.startswith("request"):
                await peer.stream.send_all(example.data)
                continue
            while request_id not in received:
                frame = await peer.receive()
                received[frame.header["id"]] = frame
            answer = received.pop(request_id)
            header = answer.header
            if "metrics" in example.header:  # the page shows some of them
                shown = example.header["metrics"].keys()
                header["metrics"] = {name: header["metrics"].get(name) for name in shown}
            assert invented(header) == invented(example.header)
            payload = bytes(answer.payload)
            if isinstance(example.payload, str):
                assert payload.hex() == example.payload
            else:
                assert invented(msgpack.unpackb(payload)) == invented(example.payload)
        assert received == {}
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await trio.testing.wait_all_tasks_blocked()
    broker.close()


def test_the_requests_of_the_page_are_numbered_and_each_is_answered_on_it() -> None:
    labels = [(example.label.split()[0], example.header["id"]) for example in EXCHANGE if example.header["id"]]
    asked = [number for direction, number in labels if direction == "request"]
    assert asked == list(range(1, len(asked) + 1))
    assert sorted(number for direction, number in labels if direction != "request") == asked


def test_the_batch_that_is_appended_and_fetched_is_kafkas_own() -> None:
    sent, back = (
        next(bytes.fromhex(example.payload) for example in EXAMPLES if example.label == label)
        for label in ("request append", "reply fetch")
    )
    assert sent == golden.TWO_RECORDS
    assert back == sent[:12] + struct.pack(">i", 0) + sent[16:], "only the leader epoch has changed"
