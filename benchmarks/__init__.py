"""``python -m benchmarks``: how far each hot path is from a bare loop. Benchmarks, never tests; see NOTES.md."""
