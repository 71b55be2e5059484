"""Load on purpose: ``seglog load produce|consume|roundtrip``.

Batches are made once and sent again and again with a new timestamp, requests go out several at a time over several
connections, and what came back when is counted. ``running.run`` does it, ``plan.Plan`` says what, ``report.Report``
is what was measured.
"""
