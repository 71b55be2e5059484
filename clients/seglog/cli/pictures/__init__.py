"""Pictures of logs: what a broker answers becomes a ``Picture``, which is drawn as text or as SVG.

``explained`` makes pictures of answers, ``text`` and ``svg`` draw them. None of them does any I/O.
"""
