"""The log directory: its topics, its partitions, its start and its stop."""
