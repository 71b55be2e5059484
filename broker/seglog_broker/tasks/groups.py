"""Groups of consumers: loads them, then writes what they decide and commit, and forgets what nobody came back for."""

from typing import Protocol


class Runnable(Protocol):
    """The groups of a broker."""

    async def run(self) -> None:
        """Run until cancelled."""
        ...


class Services(Protocol):
    """What this task uses of the broker."""

    @property
    def groups(self) -> Runnable:
        """The groups."""
        ...


async def run_groups(broker: Services) -> None:
    """Run the groups."""
    await broker.groups.run()
