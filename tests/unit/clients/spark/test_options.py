"""Options as they are typed, and offsets as Spark keeps them."""

import json
import random
import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_protocol.compression import Codec
from seglog_spark.offsets import EARLIEST, LATEST, OffsetRange, TopicPartition, from_spark, shown, to_spark
from seglog_spark.options import (
    Assign,
    AtOffsets,
    AtTimes,
    Mode,
    OptionError,
    Subscribe,
    SubscribePattern,
    parse_read_options,
    parse_write_options,
)
from tests.support import each_case

BROKER = {"servers": "localhost"}
READ = BROKER | {"subscribe": "a"}
FILES = {"localLogDir": "/data", "subscribe": "a"}


def test_a_batch_reads_everything_and_a_stream_what_is_new_unless_told_otherwise() -> None:
    batch, stream = parse_read_options(READ, "batch"), parse_read_options(READ, "stream")
    assert batch.server == stream.server == "localhost:9192"
    assert (batch.starting, batch.ending) == (AtOffsets({}, EARLIEST), AtOffsets({}, LATEST))
    assert (stream.starting, stream.ending) == (AtOffsets({}, LATEST), None)
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert not batch.pushdown


ASSIGNED = Assign((TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1)))


@each_case(
    ("options", "name", "value"),
    [
        ({"subscribe": " b , a,b"}, "selection", Subscribe(("a", "b"))),
        ({"subscribepattern": "a.*"}, "selection", SubscribePattern("a.*")),
        ({"assign": '{"b": [1, 0], "a": [2]}'}, "selection", ASSIGNED),
        ({"subscribe": "a", "maxoffsetspertrigger": "1_000"}, "max_offsets_per_trigger", 1000),
        ({"subscribe": "a", "startingTimestamp": "2019-01-01"}, "starting", AtTimes({}, 1546300800000)),
        ({"subscribe": "a", "maxBytesPerTrigger": "64 MB"}, "max_bytes_per_trigger", 64 << 20),
        ({"subscribe": "a", "targetTaskBytes": "1024k"}, "target_task_bytes", 1 << 20),
        ({"subscribe": "a", "minOffsetsPerTrigger": "1", "maxTriggerDelay": "90s"}, "max_trigger_delay", 90),
        ({"subscribe": "a"}, "group", None),
        ({"subscribe": "a", "group": "etl"}, "group", "etl"),
    ],
)
def test_what_an_option_means(options: dict[str, str], name: str, value: object) -> None:
    """Also in lower case, as Spark hands keys over."""
    for broker in ("servers", "kafka.bootstrap.servers"):
        found = parse_read_options({broker: "there:1"} | options, "stream")
        assert (found.server, getattr(found, name)) == ("there:1", value)


def test_a_time_for_all_is_stronger_than_one_for_each_which_is_stronger_than_offsets() -> None:
    places = {
        "startingOffsets": '{"a": {"0": 5, "1": -2}}',
        "startingOffsetsByTimestamp": '{"a": {"0": 7000, "1": 0}}',
        "startingTimestamp": "9000",
    }
    assert parse_read_options(READ | places, "batch").starting == AtTimes({}, 9000, or_latest=False)
    del places["startingTimestamp"]
    by_partition = {TopicPartition("a", 0): 7000, TopicPartition("a", 1): 0}
    places["startingOffsetsByTimestampStrategy"] = "latest"
    assert parse_read_options(READ | places, "batch").starting == AtTimes(by_partition, None, or_latest=True)
    del places["startingOffsetsByTimestamp"]
    offsets = {TopicPartition("a", 0): 5, TopicPartition("a", 1): EARLIEST}
    assert parse_read_options(READ | places, "batch").starting == AtOffsets(offsets)


@each_case(
    ("mode", "options", "sentence"),
    [
        ("batch", {"subscribe": "a"}, "no broker is named"),
        ("batch", BROKER, "no topic is named"),
        ("batch", READ | {"assign": '{"a": [0]}'}, "subscribe and assign exclude each other"),
        ("batch", READ | {"kafka.bootstrap.servers": "elsewhere:1"}, "name different brokers"),
        ("batch", BROKER | {"servers": "a:1,b:2", "subscribe": "a"}, "lists several brokers"),
        ("batch", BROKER | {"servers": "http://a:1", "subscribe": "a"}, "another kind of URL"),
        ("batch", READ | {"startingOfsets": "earliest"}, "did you mean startingOffsets?"),
        ("batch", READ | {"kafka.group.id": "g"}, "belongs to no group"),
        ("stream", READ | {"groupIdPrefix": "g"}, "the option group of a stream names one to which its progress is"),
        ("batch", READ | {"group": "g"}, "has no meaning in a batch read"),
        ("stream", READ | {"group": " "}, "group names no group"),
        ("stream", FILES | {"group": "g"}, "group needs a broker, which keeps what groups commit"),
        *(
            ("batch", FILES | {name: "localhost"}, f"localLogDir reads files without a broker: leave out {name}")
            for name in ("servers", "kafka.bootstrap.servers", "user")
        ),
        ("stream", FILES | {"localLogDir": "data"}, "an absolute path, the same on every machine"),
        ("batch", READ | {"path": "a"}, "name the topics with subscribe"),
        ("batch", READ | {"maxOffsetsPerTrigger": "5"}, "has no meaning in a batch read"),
        ("stream", READ | {"endingOffsets": "latest"}, "has no meaning in a stream read"),
        ("stream", READ | {"ack": "disk"}, "has no meaning in a stream read"),
        ("batch", READ | {"startingOffsets": "latest"}, "nothing to read"),
        ("batch", READ | {"startingOffsets": '{"a": {"0": -1}}'}, "nothing to read"),
        ("batch", READ | {"endingOffsets": '{"a": {"0": -2}}'}, "nothing to read"),
        ("batch", READ | {"startingOffsets": '{"a": {"0": -3}}'}, "gives a-0 the offset -3"),
        ("batch", READ | {"startingOffsets": '{"a": [0]}'}, "has no partitions for 'a'"),
        ("batch", READ | {"startingOffsets": "5"}, "write for example"),
        ("batch", READ | {"startingOffsets": "{"}, "write for example"),
        ("batch", READ | {"startingOffsets": '{"a": {"x": 0}}'}, "names a partition 'x'"),
        ("batch", READ | {"startingTimestamp": "earliest"}, "is a time"),
        ("batch", READ | {"startingTimestamp": "soon"}, "startingTimestamp is a time: milliseconds since 1970"),
        ("batch", READ | {"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "milliseconds since 1970"),
        ("batch", BROKER | {"assign": '{"a": []}'}, "no list of partitions"),
        ("batch", BROKER | {"assign": '{"a": [true]}'}, "names a partition True"),
        ("batch", BROKER | {"subscribe": " , "}, "names no topic"),
        ("batch", BROKER | {"subscribePattern": "("}, "is not a regular expression"),
        ("batch", READ | {"failOnDataLoss": "maybe"}, "true or false"),
        ("batch", READ | {"minPartitions": "0"}, "from 1 to 9223372036854775807"),
        ("batch", READ | {"maxRecordsPerPartition": "1e20"}, "written in digits, not '1e20'"),
        ("batch", READ | {"targetTaskBytes": "big"}, "a number of bytes"),
        ("batch", READ | {"targetTaskBytes": "1k"}, "targetTaskBytes is 1m or more, not '1k'"),
        ("batch", READ | {"targetTaskBytes": "1048575"}, "for more tasks set minPartitions"),
        ("stream", READ | {"maxBytesPerTrigger": "0"}, "a number of bytes"),
        ("stream", READ | {"maxTriggerDelay": "1m"}, "minOffsetsPerTrigger, which is not set"),
        ("stream", READ | {"minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"}, "a time span"),
        ("stream", READ | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is larger than"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_sentence(mode: Mode, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=re.escape(sentence)):
        parse_read_options(options, mode)


def test_the_isolation_is_read_uncommitted_unless_one_of_two_options_says_otherwise() -> None:
    def isolation(mode: Mode, **options: str) -> str:
        given = {name.replace("_", "."): text for name, text in options.items()}
        return parse_read_options({"servers": "localhost", "subscribe": "a"} | given, mode).isolation

    for mode in get_args(Mode):
        assert isolation(mode) == "read_uncommitted"
        assert isolation(mode, isolation="read_committed") == "read_committed"
        assert isolation(mode, kafka_isolation_level="READ_COMMITTED") == "read_committed"
        with pytest.raises(OptionError, match="isolation is read_uncommitted or read_committed, not 'committed'"):
            isolation(mode, isolation="committed")
        with pytest.raises(OptionError, match=r"isolation and kafka\.isolation\.level contradict each other"):
            isolation(mode, isolation="read_committed", kafka_isolation_level="read_uncommitted")


def test_a_sink_waits_for_the_disk_and_takes_what_spark_hands_on() -> None:
    options = parse_write_options(BROKER | {"checkpointlocation": "/tmp/c", "queryname": "q"}, "stream")
    assert (options.ack, options.codec, options.guarantee) == ("disk", Codec.NONE, "at-least-once")
    assert options.topic is None
    compressed = parse_write_options(BROKER | {"topic": "t", "compression": "ZSTD", "ack": "os"}, "batch")
    assert (compressed.topic, compressed.codec, compressed.ack) == ("t", Codec.ZSTD, "os")


@each_case(
    ("mode", "options", "sentence"),
    [
        ("batch", {"deliveryGuarantee": "effectively-once", "topic": "t"}, "needs a jobId"),
        ("batch", {"deliveryGuarantee": "effectively-once", "jobId": "j"}, "needs the option topic"),
        ("stream", {"deliveryGuarantee": "effectively-once", "ack": "none"}, "needs an ack"),
        ("stream", {"deliveryGuarantee": "once"}, "at-least-once or effectively-once or exactly-once"),
        ("stream", {"deliveryGuarantee": "exactly-once"}, "exactly-once needs the option topic"),
        ("batch", {"deliveryGuarantee": "exactly-once", "topic": "t"}, "exactly-once needs a jobId"),
        ("stream", {"deliveryGuarantee": "exactly-once", "topic": "t", "ack": "os"}, "always at ack disk, not os"),
        ("stream", {"topic": "t", "marksTopic": "m"}, "marksTopic belongs to"),
        (
            "stream",
            {"deliveryGuarantee": "effectively-once", "topic": "t", "transactionTimeout": "5m"},
            "transactionTimeout belongs to deliveryGuarantee exactly-once, which is not set",
        ),
        (
            "stream",
            {"deliveryGuarantee": "exactly-once", "topic": "t", "transactionTimeout": "soon"},
            "transactionTimeout is a time span",
        ),
        ("stream", {"jobId": "j", "deliveryGuarantee": "effectively-once"}, "has no meaning in a stream write"),
        ("batch", {"jobId": "j"}, "which is not set"),
        ("batch", {"ack": "all"}, "none or os or disk"),
        ("batch", {"kafka.acks": "all"}, "write ack"),
        ("batch", {"compression": "brotli"}, "not 'brotli'"),
        ("batch", {"subscribe": "a"}, "has no meaning in a batch write"),
        ("batch", {"path": "t"}, "without a path"),
    ],
)
def test_what_a_sink_cannot_do_is_refused_with_a_sentence(mode: Mode, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=re.escape(sentence)):
        parse_write_options(BROKER | options, mode)


PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b", "b-1", "é"]), st.integers(0, 200))


@given(st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1)), st.randoms())
def test_the_same_offsets_are_the_same_text_in_whatever_order_they_were_found(
    offsets: dict[TopicPartition, int], shuffle: random.Random
) -> None:
    items = list(offsets.items())
    shuffle.shuffle(items)
    text = json.dumps(to_spark(dict(items)))
    assert text == json.dumps(to_spark(offsets))
    assert from_spark(json.loads(text)) == offsets


def test_partitions_are_in_the_order_of_numbers_and_topics_in_that_of_names() -> None:
    offsets = {TopicPartition("b", 10): 1, TopicPartition("b", 9): 2, TopicPartition("a", 0): 3}
    assert json.dumps(to_spark(offsets)) == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'


def test_ranges_and_partitions_read_well_in_a_sentence() -> None:
    assert str(OffsetRange("commits", 2, 5, 9)) == "commits-2 from 5 to 9"
    assert shown([TopicPartition("a", number) for number in range(5)]) == "a-0, a-1, a-2 and 2 more"
