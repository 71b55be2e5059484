"""Processes beside the event loop: cleaning, scrubbing, crash recovery, checking records of large batches."""
