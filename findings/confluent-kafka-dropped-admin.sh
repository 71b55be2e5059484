#!/usr/bin/env bash
# confluent-kafka 2.16.1 (librdkafka 2.16.0): a future of AdminClient does not keep its client.
#
# AdminClient(...).create_topics(...)["topic"].result() in one expression looks like any use of a future. The client is gone
# as soon as the call has returned its futures, before the broker has answered: the result is _DESTROY, an error that says
# nothing of this, or there never is one, by when the answer comes. With the client in a variable the same call works.
#
# Seen, with the mock cluster that librdkafka brings along:
#
#   in one expression: _DESTROY      (or: nothing within 10 s)
#   with the client in a variable: an answer
#
# What to do: keep the client in a variable until the results are there.
# Needs Python 3.11 or newer, and some seconds. Fails when confluent-kafka does something else.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet confluent-kafka==2.16.1
"$folder/venv/bin/python" - 2> /dev/null <<'PYTHON'
import sys

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

mock = Producer({"test.mock.num.brokers": 1})
[broker] = mock.list_topics(timeout=10).brokers.values()
conf = {"bootstrap.servers": f"{broker.host}:{broker.port}"}
asked = [ConsumerGroupTopicPartitions("group", [TopicPartition("topic", 0)])]
try:
    AdminClient(conf).list_consumer_group_offsets(asked)["group"].result(10)
    dropped = "an answer"
except KafkaException as error:
    dropped = error.args[0].name()
except TimeoutError:
    dropped = "nothing within 10 s"
client = AdminClient(conf)
kept = "an answer" if client.list_consumer_group_offsets(asked)["group"].result(20) else "none"
print("in one expression:", dropped)
print("with the client in a variable:", kept)
sys.exit(dropped not in {"_DESTROY", "nothing within 10 s"} or kept != "an answer")
PYTHON
