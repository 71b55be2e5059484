"""What all faces of the client share: requests, records and decisions, without socket, thread or clock.

A face (``seglog.client``, which blocks, and ``seglog.asynchronous`` for trio and asyncio) adds the waiting: a link that
reads and writes, and the objects around the cores of the same name. ``conversations`` says how sequences of requests
are written once for all faces.
"""
