"""What ``seglog support-bundle`` writes: collected, with secrets out, into one archive."""
