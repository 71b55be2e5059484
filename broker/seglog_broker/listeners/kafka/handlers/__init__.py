"""The requests of Kafka's wire, a module for each family of apis.

The head of a module lists its apis, with the versions that changed something. *Flexible* are versions with compact
lengths and tagged fields (KIP-482). A throttle time is always 0. Each module registers its apis in ``APIS``.
"""
