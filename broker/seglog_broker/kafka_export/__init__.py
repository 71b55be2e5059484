"""A log directory handed over to Apache Kafka: ``seglogd export-kafka``."""
