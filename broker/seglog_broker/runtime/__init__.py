"""The daemon's runtime: threads, logs, metrics, memory for requests, descriptors, signals."""
