"""What the broker tells about itself: families of metrics, read when they are asked for, in slices."""
