"""One segment: a `.log`, its two indexes, its checksum; finding, reading and verifying batches in it."""
