"""Jobs on Spark: ``seglog spark archive | replay | compact | report``.

Each is a module with ``run(options)``, and can be run by itself, by ``python -m seglog_spark.jobs.archive`` or by
spark-submit, with the same arguments. A job asks the broker first and starts Spark only when there is something to do,
so planning can be tested without Spark.
"""
