"""Reading a log directory, seglog's or Kafka's, directly from its files, without a broker.

    segment    one segment: index look-ups, iteration over batch headers
    partition  one partition: its ends, its bytes from an offset on, reasons for its holes
    topics     a log directory: its topics
    consumer   verified batches, as from the consumer of a broker

A broker may be running meanwhile. Segments are listed again whenever one ends, and found by offset, never by the name
of the next file; an open file stays readable after its deletion. So rolls, retention and compaction are noticed, and no
record is skipped. Nothing is written here. Files are read, not mapped: truncating a mapped file kills its reader.
"""
