"""The log directory: its topics and partitions, and its start and stop."""
