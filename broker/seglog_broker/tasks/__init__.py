"""Background tasks, one module each; all are children of the one nursery in ``serve``."""
