"""Kafka's wire protocol, on the same engine as the native one."""
