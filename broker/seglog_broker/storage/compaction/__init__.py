"""Compaction of a log: what can be cleaned, the job, the cleaned segments, their swap into the log."""
