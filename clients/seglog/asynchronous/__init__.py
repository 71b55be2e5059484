"""What the faces on trio and on asyncio share: all of it but the loop.

Clients, links, producers and consumers are written once, as coroutines that wait only through a ``Loop``. A face brings
its loop and a ``connect``.
"""
