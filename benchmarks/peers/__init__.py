"""``python -m benchmarks --peers``: the same requests to seglog, Apache Kafka, NATS JetStream and Redis Streams."""
