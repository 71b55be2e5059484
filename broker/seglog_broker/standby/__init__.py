"""A process that stands by, before it serves: its pages, its socket, and the stage that ends with a promotion."""
