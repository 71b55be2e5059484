"""``seglogd dump``: what lies on disk, told without touching it.

Producers (``log_file``, ``index_files``, ``small_files``, ``directories``) read through the storage seam and yield
``facts``; ``readable`` and ``json_lines`` turn facts into lines; ``command`` is what an operator calls. Nothing here
locks, writes or needs a stopped broker, and the lock file is never opened: closing any descriptor of it would drop the
lock of a broker in the same process.
"""
