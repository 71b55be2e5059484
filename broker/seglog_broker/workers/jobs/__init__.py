"""The kinds of worker, a module each: its jobs, what it answers, and the functions that do them."""
