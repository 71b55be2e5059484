"""The requests of Kafka's wire, a module for each family of apis.

The head of a module names its apis; the fields of their versions are in the table of messages, and KAFKA.md lists the
versions that are answered. A throttle time is always 0. Each module registers its apis in ``APIS``.
"""
