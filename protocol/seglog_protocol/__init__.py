"""Bytes <-> values: record batches, segment file names and indexes, native frames and messages, errors.

Pure: no sockets, no files, no clock, and nothing of ours is imported. Broker, clients and tools all stand on it.
"""
