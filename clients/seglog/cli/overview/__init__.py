"""``seglog top``: the broker's metrics, read again and again, as one page in the width it is given."""
