"""The storage engine: synchronous; the clock and the file system come in as arguments.

Read in this order: filesystem, sparse_index, segment, log_core, partition_log, recovery, directory_core, log_directory.
"""
