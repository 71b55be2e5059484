"""``seglogd check``: whether a log directory is sound, byte for byte, and with ``--repair`` what can be done about it.

``directory`` takes the lock and looks at what belongs to the whole; ``partition`` looks at one partition, with
``log_walk``, ``indexes`` and ``small_files``; each finding is one of ``findings``. What is found comes with a ``plan``
of repairs, decided while looking and done afterwards by ``repair``, so that a check that may not change anything and
one that may see the same. ``readable`` and ``json_lines`` make lines; ``command`` is what an operator calls.
"""
