"""How often each group has begun another generation, or group epoch, since the start of the broker."""


class Rebalances:
    """Counts of the groups that there are."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}  # group -> its last generation, how many have begun

    def note(self, group: str, generation: int) -> None:
        """A group is at this generation now."""
        last, count = self._seen.get(group, (0, 0))
        if generation != last:
            self._seen[group] = generation, count + max(0, generation - last)

    def restored(self, group: str, generation: int) -> None:
        """A group was at this generation when the broker started."""
        self._seen[group] = generation, 0

    def forget(self, group: str) -> None:
        """A group is gone."""
        self._seen.pop(group, None)

    def count(self, group: str) -> int:
        """Generations begun since the start."""
        return self._seen.get(group, (0, 0))[1]
