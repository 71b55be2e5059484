"""A log directory, seglog's or Kafka's, read straight from its files: no broker is asked, and none need run.

    segment    one segment: seeks through its indexes, walks its headers
    partition  one partition: its ends, its bytes from an offset on, what its holes mean
    topics     a log directory: which topics there are, its checkpoints
    consumer   verified batches, as the consumer of a broker gives them

The broker may be at work meanwhile. Segments are looked up anew whenever one ends, by offset and never by the name of
the next file, and a file that was opened stays readable when its name is gone; so rolling, expiring and compacting are
noticed, and nothing that was there is passed over. Nothing is ever written here. Files are read, not mapped: a mapped
file that is cut shorter kills its reader.
"""
