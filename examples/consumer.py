"""Read the records of a topic, from a moment on, up to its end.

    python examples/consumer.py [earliest | -1h | 2024-07-01 | …]

The broker and the account are those of the command line, SEGLOG_SERVER and SEGLOG_USER or a profile.
"""

import sys

import seglog

TOPIC = "readings"


def main(start: str) -> None:
    """Print every record, then what was missing between them."""
    # With follow=True the loop would not end, but wait for new records.
    with seglog.connect() as client, client.consumer(TOPIC, start=start) as consumer:
        count = 0
        for record in consumer:
            count += 1
            key = None if record.key is None else record.key.decode()
            value = None if record.value is None else record.value.decode()
            print(record.partition, record.offset, record.timestamp, key, value)
    print(f"{count:,} records", file=sys.stderr)
    for gap in consumer.gaps:
        # Offsets without a record: compacted away, expired, damaged; never skipped in silence.
        print(gap, file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "earliest")
