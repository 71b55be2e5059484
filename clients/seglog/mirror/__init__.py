"""``seglog mirror``: topics copied live between a broker and an Apache Kafka, either way, record by record.

Both sides are spoken to by confluent-kafka, which the extra ``kafka`` installs; a seglogd by its listener for Kafka's
clients, so that there is one code for both directions. Nothing is kept beside the target: how far it has come stands in
the target itself, in its own log and in the committed offsets of the group ``seglog-mirror``.
"""
