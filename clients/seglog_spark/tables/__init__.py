"""Topics as tables: the files of an archive, where they lie, how they are laid out, and what commits them.

Nothing here needs Spark, or a process of its own: ``jobs`` make these files, as tasks of Spark or in threads.
"""
