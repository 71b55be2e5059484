"""A member with the native client."""

from typing import Final

import seglog
from tests.members.programs.telling import SESSION_SECONDS, Teller

CONNECT_SECONDS: Final = 120.0
"""The broker may be away, and busy when it is back."""


def main() -> None:
    teller = Teller()

    def assigned(partitions: list[int]) -> None:
        member = consumer._session.membership.member  # there is no public way to ask for it
        teller.assigned("" if member is None else member.member_id, member and member.generation, partitions)

    with seglog.connect(teller.server, client_id=teller.who, connect_timeout=CONNECT_SECONDS) as client:
        consumer = client.consumer(
            teller.topic,
            group=teller.group,
            start="earliest",
            auto_commit=False,
            assignors=["range"],
            session_timeout=SESSION_SECONDS,
            on_assigned=assigned,
            on_revoked=lambda partitions, lost: teller.revoked(),
        )
        count = 0
        for record in consumer:
            teller.handled(record.partition, record.offset)
            count += 1
            if teller.is_commit_due(count):
                count = 0
                with teller.committing(seglog.SeglogError) as offsets:
                    consumer.commit(offsets)


if __name__ == "__main__":
    main()
