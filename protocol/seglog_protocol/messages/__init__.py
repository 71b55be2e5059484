"""Native requests and replies as msgspec structs, and their encoding to msgpack maps and back.

A request travels as ``{"id", "api", "v", ...fields}``, its reply as ``{"id", ...fields}`` or
``{"id", "error": {...}}``; record batches and long listings travel in the frame's payload. The broker refuses unknown
request fields (a new field means ``v`` + 1 of that api); clients ignore unknown reply fields. Results and errors are
per partition: one bad partition never fails the others. A field that is None is left out.

The page MESSAGES.md has each of them; ``scripts/message_tables.py`` makes it.
"""
# ruff: noqa: F403 - the package has the names of its modules

from seglog_protocol.messages.append import *
from seglog_protocol.messages.base import *
from seglog_protocol.messages.carried import *
from seglog_protocol.messages.explain import *
from seglog_protocol.messages.fetch import *
from seglog_protocol.messages.groups import *
from seglog_protocol.messages.headers import *
from seglog_protocol.messages.hello import *
from seglog_protocol.messages.offsets import *
from seglog_protocol.messages.samples import *
from seglog_protocol.messages.security import *
from seglog_protocol.messages.topics import *
from seglog_protocol.messages.transactions import *
