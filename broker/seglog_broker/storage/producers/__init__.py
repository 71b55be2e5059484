"""What is known of idempotent producers, and the files that keep it across restarts."""
