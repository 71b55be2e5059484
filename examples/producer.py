"""Send records to a topic, and learn which of them are safe.

    python examples/producer.py

The broker and the account are those of the command line, SEGLOG_SERVER and SEGLOG_USER or a profile.
"""

import sys

import seglog

TOPIC = "readings"


def main() -> int:
    """Send a thousand records and wait until all of them are on the broker's disk."""
    with seglog.connect() as client:
        client.create_topic(TOPIC, partitions=3, exist_ok=True)
        try:
            # Records of one key go to one partition, and stay in order there. `send` returns at once; records that
            # are sent within 5 ms of each other share a batch.
            with client.producer(TOPIC) as producer:
                for number in range(1000):
                    producer.send(str(number), key=f"sensor-{number % 10}")
                receipt = producer.send("1000", key="sensor-0").result(timeout=30)  # waits for this record
            # Leaving the block has waited for all of them.
        except seglog.DeliveryFailed as failed:
            print(f"not everything was acknowledged: {failed}", file=sys.stderr)
            return 1
    print(f"1,001 records sent; the last one is in partition {receipt.partition} and has reached {receipt.ack}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
