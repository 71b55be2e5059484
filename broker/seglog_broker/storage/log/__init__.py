"""The log of one partition: its segments, appends, reads, flushes, retention and crash recovery."""
