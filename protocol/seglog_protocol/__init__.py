"""Bytes <-> values: record batches, segment file names and indexes, native frames and messages, errors.

Pure: no sockets, no files, no clock, and no import from the rest of seglog. Broker, clients and tools all build on it.
"""
