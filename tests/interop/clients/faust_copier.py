"""Copies topic ``in`` to ``out`` with Faust, and counts the records of each key in a table. Arguments: server, folder.

A copy's value has the count behind it. The table is in memory: it comes back from its changelog.
"""

import sys

import faust

server, folder = sys.argv[1:]
app = faust.App(
    "copiers",
    broker=f"kafka://{server}",
    store="memory://",
    datadir=folder,
    topic_partitions=4,
    web_enabled=False,
    broker_commit_interval=0.5,
    broker_session_timeout=6,
    broker_heartbeat_interval=1,
)
records = app.topic("in", key_type=bytes, value_type=bytes, value_serializer="raw")
copies = app.topic("out", key_type=bytes, value_type=bytes, value_serializer="raw")
counts = app.Table("counts", key_type=bytes, value_type=int, default=int)


@app.agent(records)
async def copy(stream: faust.Stream[bytes]) -> None:
    """A record counts as done when the stream is asked for the next one."""
    async for key, value in stream.items():
        counts[key] += 1
        sent = await copies.send(key=key, value=b"%s %d" % (value, counts[key]))
        await sent


if __name__ == "__main__":
    faust.Worker(app, loglevel="info").execute_from_commandline()
