"""What ``seglog doctor`` looks at: what the broker tells, its machine, its listeners as a client sees them."""
