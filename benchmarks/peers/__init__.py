"""``python -m benchmarks --peers``: the same requests to seglog, to brokers of Kafka's protocol, and to Redis."""
