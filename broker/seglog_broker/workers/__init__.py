"""Processes beside the event loop, and their jobs: cleaning, scrubbing, crash recovery, records of large batches."""
