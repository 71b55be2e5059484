"""What the daemon runs on: threads, logs, metrics, memory for requests, descriptors, signals."""
