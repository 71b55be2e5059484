"""Derives the table of Kafka's messages from the message definitions in Kafka's jars.

    python scripts/kafka_definitions.py kafka-clients-4.4.0.jar kafka-group-coordinator-4.4.0.jar \
        kafka-share-coordinator-4.4.0.jar kafka-transaction-coordinator-4.4.0.jar kafka-metadata-4.4.0.jar

writes ``definitions.txt`` of ``seglog_protocol.kafka``. The jars carry the definitions as JSON
with comments, in ``common/message`` and ``common/metadata``. Taken are the requests that clients send to a broker, of
the api keys ``API_KEYS``, their responses, both headers, the consumer protocol of classic groups, the records of the
coordinators, and those records of the metadata log that a directory is adopted by, or handed over with. A test derives
it again where it has the jars.
"""

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Json = Mapping[str, Any]

KAFKA_VERSION: Final = "4.4.0"
API_KEYS: Final = {*range(80), 90, 91, 92}
"""Between brokers are the others up to 87; streams groups and changes of the raft quorum have those after it."""
DATA: Final = (
    "RequestHeader",
    "ResponseHeader",
    "ConsumerProtocolSubscription",
    "ConsumerProtocolAssignment",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "ConsumerGroupMetadataKey",
    "ConsumerGroupMetadataValue",
    "ConsumerGroupPartitionMetadataKey",
    "ConsumerGroupPartitionMetadataValue",
    "ConsumerGroupMemberMetadataKey",
    "ConsumerGroupMemberMetadataValue",
    "ConsumerGroupTargetAssignmentMetadataKey",
    "ConsumerGroupTargetAssignmentMetadataValue",
    "ConsumerGroupTargetAssignmentMemberKey",
    "ConsumerGroupTargetAssignmentMemberValue",
    "ConsumerGroupCurrentMemberAssignmentKey",
    "ConsumerGroupCurrentMemberAssignmentValue",
    "ConsumerGroupRegularExpressionKey",
    "ConsumerGroupRegularExpressionValue",
    "ShareGroupMemberMetadataKey",
    "ShareGroupMemberMetadataValue",
    "ShareGroupMetadataKey",
    "ShareGroupMetadataValue",
    "ShareGroupTargetAssignmentMetadataKey",
    "ShareGroupTargetAssignmentMetadataValue",
    "ShareGroupTargetAssignmentMemberKey",
    "ShareGroupTargetAssignmentMemberValue",
    "ShareGroupCurrentMemberAssignmentKey",
    "ShareGroupCurrentMemberAssignmentValue",
    "ShareGroupStatePartitionMetadataKey",
    "ShareGroupStatePartitionMetadataValue",
    "ShareSnapshotKey",
    "ShareSnapshotValue",
    "ShareUpdateKey",
    "ShareUpdateValue",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "TransactionLogKey",
    "TransactionLogValue",
    "SnapshotHeaderRecord",
    "SnapshotFooterRecord",
    "TopicRecord",
    "PartitionRecord",
    "ConfigRecord",
    "RemoveTopicRecord",
    "UserScramCredentialRecord",
    "FeatureLevelRecord",
    "ClientQuotaRecord",
    "ProducerIdsRecord",
    "AccessControlEntryRecord",
    "RemoveAccessControlEntryRecord",
    "RemoveUserScramCredentialRecord",
)
"""What is read and written besides requests and responses."""

PACKAGE: Final = Path(__file__).resolve().parent.parent / "protocol" / "seglog_protocol" / "kafka"

TABLE_HEADER: Final = f"""\
# The messages of Apache Kafka {KAFKA_VERSION}, derived from its message definitions by scripts/kafka_definitions.py,
# which selects and abridges them: descriptions and what only Kafka's own code needs are left out.
#
# Licensed to the Apache Software Foundation (ASF) under one or more contributor license agreements. The ASF licenses
# this file to You under the Apache License, Version 2.0 (the "License"); you may not use this file except in compliance
# with the License. You may obtain a copy of the License at
#
#    http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software distributed under the License is distributed on an
# "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the License for the
# specific language governing permissions and limitations under the License. The file NOTICE goes with it.
#
# A message:  name, kind, api key or -, versions, flexible versions
# A field:    name, type, versions; then, where it has them, nullable: versions, tag: number, tagged: versions,
#             flexible: versions, where they are not the message's, and default: value, where it is not a zero
# A struct that several fields share:  struct, name, versions
"""


def main(arguments: Sequence[str]) -> int:
    """Write the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("jars", nargs="+", type=Path, metavar="JAR", help="Kafka's jars")
    parser.add_argument("--into", type=Path, default=PACKAGE, metavar="DIR", help="instead of the package")
    options = parser.parse_args(arguments)
    (options.into / "definitions.txt").write_text(render_table(read_jars(options.jars)))
    return 0


def read_jars(jars: Sequence[Path]) -> dict[str, Json]:
    """The definitions of all messages in ``jars``, by name."""
    found = {}
    for jar in jars:
        with zipfile.ZipFile(jar) as opened:
            for entry in opened.namelist():
                if re.fullmatch(r"common/(message|metadata)/\w+\.json", entry):
                    message = json.loads(re.sub(r"(?m)^\s*//.*$", "", opened.read(entry).decode()))
                    found[message["name"]] = message
    return found


def render_table(messages: Mapping[str, Json]) -> str:
    """The text of ``definitions.txt``."""
    blocks = [TABLE_HEADER]
    requests = {message["apiKey"]: message for message in messages.values() if _is_taken(message)}
    responses = {message["apiKey"]: message for message in messages.values() if message["type"] == "response"}
    chosen = [message for key in sorted(requests) for message in (requests[key], responses[key])]
    chosen += [messages[name] for name in DATA]
    blocks += ["\n".join(_message_lines(message)) + "\n" for message in chosen]
    return "\n".join(blocks)


def _is_taken(message: Json) -> bool:
    """Whether it is a request of a client to a broker."""
    return message["type"] == "request" and "broker" in message.get("listeners", ()) and message["apiKey"] in API_KEYS


def _message_lines(message: Json) -> Iterator[str]:
    kind = {"request": "request", "response": "response"}.get(message["type"], "data")
    key = message["apiKey"] if kind != "data" else "-"
    yield f"{message['name']} {kind} {key} {message['validVersions']} {message['flexibleVersions']}"
    for struct in message.get("commonStructs", ()):
        yield f"  struct {struct['name']} {struct['versions']}"
        yield from _field_lines(struct["fields"], "    ")
    yield from _field_lines(message["fields"], "  ")


def _field_lines(fields: Sequence[Json], indent: str) -> Iterator[str]:
    for field in fields:
        yield indent + " ".join(_field_words(field))
        yield from _field_lines(field.get("fields", ()), indent + "  ")


def _field_words(field: Json) -> Iterator[str]:
    yield field["name"]
    yield field["type"].strip()
    yield field.get("versions") or field["taggedVersions"]
    for word, name in (
        ("nullable", "nullableVersions"),
        ("tag", "tag"),
        ("tagged", "taggedVersions"),
        ("flexible", "flexibleVersions"),
    ):
        if name in field:
            yield f"{word}:{field[name]}"
    value = field.get("default")
    if value is not None:  # without quotes null is no default for Kafka, either
        text = str(value).lower() if isinstance(value, bool) else str(value)
        number = int(text, 0) if re.fullmatch(r"-?(0x)?[0-9a-f]*\d[0-9a-f]*", text) else None
        if text and text != "false" and number != 0:  # what a field has without any: 0, false, ""
            yield f"default:{text if number is None else number}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
