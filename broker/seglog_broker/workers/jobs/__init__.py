"""The kinds of worker, each in a module: their jobs and answers, and the functions that do the jobs."""
