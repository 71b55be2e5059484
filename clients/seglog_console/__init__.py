"""``seglog console``: pages that draw a log, in a process of its own that is a client of the broker like any other.

``app`` is the web application, ``guard`` and ``sessions`` decide who may see it, ``pages`` makes a page of a template
and a function, and each room (``overview``, ``topics``, ...) has these functions. Pictures are those of
``seglog.cli.pictures``; changes are commands of ``seglog``.
"""
