"""The load generator: ``seglog load produce|consume|roundtrip``.

Batches are encoded once and sent repeatedly with a new timestamp, with several requests in flight over several
connections. ``plan.Plan`` describes a run, ``running.run`` executes it, ``report.Report`` has the results.
"""
