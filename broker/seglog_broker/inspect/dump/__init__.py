"""``seglogd dump``: the contents of files, read only.

``log_file``, ``index_files``, ``small_files`` and ``directories`` read through ``FileSystem`` and yield ``facts``,
``kinds`` chooses among them by path; ``command`` is the command line. No module locks or writes files, and a broker may
run meanwhile. The lock file is never opened: closing any descriptor of it would release the lock of a
broker in the same process.
"""
