"""With 10,000 partitions and 1,000 groups samples are bounded, and no slice holds up the loop."""

from collections import Counter
from time import thread_time

from seglog_broker.api.monitoring.samples import SAMPLES_MAX, SLICE_SAMPLES_MAX, weight
from seglog_broker.coordinators.groups.committed_offsets import CommittedOffset
from seglog_protocol import messages
from tests.turns import judge_turn, judges_turns
from tests.unit.broker.brokers import open_broker

TOPICS = 500
PARTITIONS = 20
GROUPS = 1000
OFFSETS = 15
"""Of each group."""


@judges_turns
async def test_the_samples_of_very_many_partitions_and_groups_are_bounded_and_made_in_short_turns() -> None:
    broker = open_broker(None, "seglog.partitions.max=20000")
    for number in range(TOPICS):
        await broker.create_topic(messages.CreateTopicRequest(f"topic-{number}", PARTITIONS))
    for group in range(GROUPS):
        for place in range(OFFSETS):
            key = f"topic-{(group + place) % TOPICS}", place
            broker.groups._offsets.committed.put(f"group-{group}", key, CommittedOffset(0, -1, "", 0))
    await broker.measurements.measure()
    spent: list[tuple[float, str, int]] = []
    counts: Counter[str] = Counter()
    slices = broker.monitoring.slices()
    while True:
        began = thread_time()
        piece = next(slices, None)
        seconds = thread_time() - began
        if piece is None:
            break
        assert sum(map(weight, piece.samples)) <= SLICE_SAMPLES_MAX
        counts[piece.family.name] += len(piece.samples)
        spent.append((seconds, piece.family.name, len(piece.samples)))
    longest = max(spent)
    print(
        f"\n{sum(counts.values()):,} samples in {len(spent):,} slices, {sum(s[0] for s in spent):.3f} s of processor"
        f" time; the longest slice {longest[0] * 1000:.2f} ms ({longest[1]}, {longest[2]} samples)"
    )
    topics, groups = SAMPLES_MAX // PARTITIONS, SAMPLES_MAX // OFFSETS
    assert counts["seglog_partition_log_end_offset"] == topics * PARTITIONS
    assert counts["seglog_group_lag"] == groups * OFFSETS
    for piece in broker.monitoring.slices(["seglog_topics_left_out", "seglog_groups_left_out"]):
        expected = TOPICS - topics if "topics" in piece.family.name else GROUPS - groups
        assert [sample.value for sample in piece.samples] == [expected]
    broker.close()
    judge_turn(longest[0], longest[1])
