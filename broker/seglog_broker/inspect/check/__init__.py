"""``seglogd check``: a check of every byte of a log directory, and with ``--repair`` its repair.

``directory`` takes the lock and checks the files of the whole directory; ``partition`` checks one partition, with
``log_walk``, ``indexes`` and ``small_files``; the kinds of finding are in ``findings``. Findings come with a ``plan``
of repairs, which ``repair`` carries out after the check, so that checks with and without repair find the same.
``readable`` and ``json_lines`` format the output; ``command`` is the command line.
"""
