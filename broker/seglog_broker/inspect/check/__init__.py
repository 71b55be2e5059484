"""``seglogd check``: a check of every byte of a log directory, and with ``--repair`` its repair.

``directory`` locks the directory and checks its own files; ``partition`` checks one partition, with ``log_walk``,
``indexes`` and ``small_files``; ``findings`` beside this package has the kinds of finding. A check also makes a
``plan`` of repairs, which ``repair`` carries out afterwards, so that a check finds the same with and without repairs.
``command`` is the command line.
"""
