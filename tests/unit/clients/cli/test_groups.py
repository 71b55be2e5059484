"""``seglog group``, whole: what it prints, what it refuses and its exit codes."""

import json
from collections.abc import Callable, Iterator

import pytest

from seglog_protocol.messages import LagResult
from tests.unit.clients.cli.conftest import Typed
from tests.unit.clients.fake_broker import FakeBroker, fake_broker
from tests.unit.clients.fake_groups import DAY_MS, NOW_MS, FakeGroup, FakeGroups, member

Run = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker(topics={"clicks": 3, "orders": 1}) as running:
        for number, log in enumerate(running.logs["clicks"]):
            log.latest = 120_000 * (number + 1)
        running.logs["clicks"][2].earliest = 5_000
        running.logs["orders"][0].latest = 40
        yield running


@pytest.fixture
def groups(broker: FakeBroker) -> FakeGroups:
    """``app`` with two members, a partition that retention nears and one that it has reached; ``idle`` without."""
    made = FakeGroups(broker)
    broker.script = made.answer
    made.lags["clicks", 0] = LagResult(
        "clicks",
        0,
        0,
        120_000,
        120_000,
        NOW_MS - 300_000,
        lost_from_ms=NOW_MS + 7_200_000,
        lost_by_ms=NOW_MS + 9_000_000,
        bytes_to_come=5_000_000,
    )
    made.lags["clicks", 2] = LagResult(
        "clicks",
        2,
        5_000,
        360_000,
        360_000,
        NOW_MS - 3 * DAY_MS,
        lost_from_ms=NOW_MS + 1_000,
        lost_by_ms=NOW_MS + 61_000,
        earliest_reason="expired",
    )
    made.commit("app", "clicks", 0, 117_500, "batch 7")
    made.commit("app", "clicks", 2, 4_711)
    made.commit("app", "orders", 0, 41)
    made.groups["app"].members = [
        member(1, {"clicks": [0, 1]}),
        member(2, {"clicks": [2]}, instance_id="static-b"),
    ]
    made.groups["idle"] = FakeGroup(empty_since_ms=NOW_MS - 3 * DAY_MS, expires_ms=NOW_MS + 4 * DAY_MS)
    made.commit("idle", "orders", 0, 12)
    made.commit("idle", "clicks", 1, 12)
    return made


def _pressed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.fixture
def run(broker: FakeBroker, groups: FakeGroups, typed: Typed) -> Run:
    """Run ``seglog group`` against the fake broker: exit code, lines of stdout and stderr, blanks pressed together."""

    def run_command(*arguments: str, answer: str | None = None) -> tuple[int, list[str], list[str]]:
        code, out, error = typed("--server", broker.address, "group", *arguments, answer=answer)
        return code, _pressed(out), _pressed(error)

    return run_command


# --- list -------------------------------------------------------------------------------------------------------------


def test_groups_are_listed_with_when_they_expire_and_with_their_lag_if_asked(run: Run) -> None:
    assert run("list") == (
        0,
        [
            "GROUP KIND STATE MEMBERS PARTITIONS EXPIRES",
            "app classic Stable 2 3 -",
            "idle classic Empty 0 2 in 4 d",
        ],
        [],
    )
    assert run("list", "--lag")[1][1:] == [
        "app classic Stable 2 3 357,500 -",
        "idle classic Empty 0 2 240,016 in 4 d",
    ]
    listed = json.loads(run("list", "--lag", "--json")[1][0])
    assert [(group["group"], group["lag"], group.get("expires_ms")) for group in listed] == [
        ("app", 357_500, None),
        ("idle", 240_016, NOW_MS + 4 * DAY_MS),
    ]
    assert "lag" not in json.loads(run("list", "--json")[1][0])[0]


# --- describe ---------------------------------------------------------------------------------------------------------

OFFSETS = [
    "TOPIC PARTITION COMMITTED LOG END LAG BEHIND LOST KEPT OWNER METADATA",
    "clicks 0 117,500 120,000 2,500 5 min - for 2 h to 2 h 30 min or for 5,000,000 more bytes member-1 batch 7",
    "clicks 1 - 240,000 - - - - member-1 -",
    "clicks 2 4,711 360,000 355,000 3 d 289 for 1 s to 1 min 1 s static-b -",
    "orders 0 41 40 0 - - - - -",
]
MEMBERS = [
    "MEMBER CLIENT ADDRESS SESSION LAST HEARTBEAT PARTITIONS",
    "member-1 worker-1 10.0.0.1 45 s 1 s ago clicks 0, 1",
    "static-b worker-2 10.0.0.2 45 s 1 s ago clicks 2",
]
WRONG = [
    (
        "seglog: clicks-2: committed offset 4711 is below the earliest offset, 5000: 289 offsets before it cannot be "
        "read any more (expired)"
    ),
    (
        "seglog: orders-0: committed offset 41 is beyond the end of the log, 40: the log lost records, or it was not "
        "read from this log"
    ),
]


def test_a_group_is_described_and_offsets_outside_the_log_are_named(run: Run) -> None:
    code, out, error = run("describe", "app")
    assert out[:3] == [
        "app: classic, Stable, generation 4, assignor range, 2 members",
        "lag 357,500 records in 3 partitions, the oldest 3 d old; nothing is committed yet in 1 more",
        "retention reaches clicks-2 in 1 s, at 2023-11-14T22:13:21.000Z",
    ]
    assert out[3:] == ["", *OFFSETS, "", *MEMBERS]
    assert (code, error) == (1, WRONG)


def test_members_and_offsets_are_shown_alone(run: Run) -> None:
    code, out, error = run("describe", "app", "--offsets")
    assert (code, out[3:], error) == (1, ["", *OFFSETS], WRONG)
    code, out, error = run("describe", "app", "--members")
    assert (code, out[3:], error) == (0, ["", *MEMBERS], [])
    assert run("describe", "app", "--members", "--offsets")[0] == 2


def test_an_empty_group_is_shown_with_when_its_offsets_expire(run: Run, groups: FakeGroups) -> None:
    assert run("describe", "idle") == (
        0,
        [
            "idle: classic, Empty, generation 4, 0 members",
            "lag 240,016 records in 2 partitions",
            "empty since 2023-11-11T22:13:20.000Z, 3 d ago",
            "expires in 4 d, at 2023-11-18T22:13:20.000Z, unless a member joins or commits",
            "",
            "TOPIC PARTITION COMMITTED LOG END LAG BEHIND KEPT EXPIRES",
            "clicks 1 12 240,000 239,988 no timestamp forever in 4 d",
            "orders 0 12 40 28 no timestamp forever in 4 d",
        ],
        [],
    )
    groups.groups["idle"] = FakeGroup(empty_since_ms=NOW_MS)
    groups.commit("idle", "orders", 0, 40)
    assert run("describe", "idle")[1][1:] == [
        "lag 0 records in 1 partition",
        "empty since 2023-11-14T22:13:20.000Z, 0 s ago",
        "expires never, as things stand",
        "",
        "TOPIC PARTITION COMMITTED LOG END LAG BEHIND KEPT",
        "orders 0 40 40 0 0 s -",
    ]


def test_what_is_over_is_said_to_be_forgotten_at_the_next_check(run: Run, groups: FakeGroups) -> None:
    groups.groups["over"] = FakeGroup(empty_since_ms=NOW_MS - DAY_MS, expires_ms=NOW_MS)
    groups.commit("over", "orders", 0, 40)
    _, out, _ = run("describe", "over")
    assert out[3] == "expires at the next check: due since 2023-11-14T22:13:20.000Z, unless a member joins or commits"
    assert out[-1].endswith(" at the next check")
    assert "over classic Empty 0 1 at the next check" in run("list")[1]


def test_a_group_that_has_committed_nothing_has_no_lag_that_is_known(run: Run, groups: FakeGroups) -> None:
    groups.groups["app"] = FakeGroup(members=[member(1, {"clicks": [0, 1]})])
    assert run("describe", "app")[1][1] == "lag unknown: nothing is committed yet"
    assert run("list", "--lag")[1][1] == "app classic Stable 1 0 - -"
    assert json.loads(run("describe", "app", "--json")[1][0])["lag"] is None
    assert json.loads(run("list", "--lag", "--json")[1][0])[0]["lag"] is None
    groups.groups["app"] = FakeGroup()
    assert run("describe", "app")[1][1] == "lag unknown: nothing is committed yet"
    groups.commit("app", "gone", 0, 5)
    assert run("describe", "app")[1][1] == "lag unknown: see the messages below"


def test_members_of_one_client_id_and_assignments_that_cannot_be_read(run: Run, groups: FakeGroups) -> None:
    twins = [member(1, {"orders": [0]}), member(2)]
    groups.groups["app"] = FakeGroup(
        members=[
            type(twin)(twin.member_id, "twin", twin.client_host, 10_000, 250, assignment=twin.assignment)
            for twin in [*twins, type(twins[0])("member-3", "", "", 10_000, 0)]
        ]
    )
    out = run("describe", "app")[1]
    assert out[3:6] == [
        "TOPIC PARTITION COMMITTED LOG END LAG BEHIND KEPT OWNER",
        "orders 0 - 40 - - - member-1",
        "",
    ]
    assert [line.rpartition("ago ")[2] for line in out[7:]] == ["orders 0", "none", "unknown"]


def test_a_description_for_programs_has_everything(run: Run) -> None:
    code, out, error = run("describe", "app", "--json")
    (described,) = map(json.loads, out)
    assert (code, error) == (1, WRONG)
    assert (described["state"], described["lag"], len(described["members"])) == ("Stable", 357_500, 2)
    first, second, third, last = described["offsets"]
    assert (first["offset"], first["metadata"], first["member_id"]) == (117_500, "batch 7", "member-1")
    assert (first["lag"]["seconds"], first["lag"]["loss_from_ms"]) == (300.0, NOW_MS + 7_200_000)
    assert (second["offset"], second["lag"], second["latest"]) == (None, None, 240_000)
    assert (third["lag"]["lost"], last["lag"]["is_beyond_end"]) == (289, True)


# --- consume ----------------------------------------------------------------------------------------------------------


# --- names that others chose ------------------------------------------------------------------------------------------

EVIL = "ev\x1b[31mil\nline\u202e"
SHOWN = r"ev\x1b[31mil\nline\u202e"


def test_names_cannot_move_the_cursor_and_programs_get_them_as_they_are(run: Run, groups: FakeGroups) -> None:
    groups.commit(EVIL, "orders", 0, 12, metadata="a\x1b[2J\nrow")
    it = member(1, {"orders": [0]})
    groups.groups[EVIL].members = [type(it)("id\x07", "cl\x9b1m", "/h\x1b", 45_000, 1_500, assignment=it.assignment)]
    assert run("list")[1][2].startswith(f"{SHOWN} classic")
    code, out, _ = run("describe", EVIL)
    assert (code, out[0]) == (0, f"{SHOWN}: classic, Stable, generation 4, assignor range, 1 member")
    assert out[4].endswith(r" id\x07 a\x1b[2J\nrow")
    assert out[7].startswith(r"id\x07 cl\x9b1m h\x1b 45 s")
    code, out, _ = run("describe", EVIL, "--json")
    described = json.loads(out[0])
    assert (described["group"], described["offsets"][0]["metadata"]) == (EVIL, "a\x1b[2J\nrow")
    for arguments in (("reset", EVIL, "--to", "1", "--all-topics"), ("delete", f"not {EVIL}")):
        code, out, error = run(*arguments)
        assert (code, out, len(error)) == (4, [], 1)
        assert all(line.isprintable() for line in error)
    groups.groups[EVIL].members = []
    assert run("reset", EVIL, "--to", "1", "--all-topics", "--execute")[1][-1] == f"{SHOWN}: 1 offset committed"
    assert run("delete", EVIL)[1] == [f"{SHOWN}: deleted"]


# --- reset ------------------------------------------------------------------------------------------------------------

DRY = ["seglog: nothing is changed: add --execute to commit the new offsets"]


def test_a_reset_is_shown_before_it_is_made(run: Run, groups: FakeGroups) -> None:
    before = groups.committed("idle")
    shown = [
        "TOPIC PARTITION OLD NEW CHANGE NOTE",
        "orders 0 12 0 -12",
        "clicks 0 - 0 -",
        "clicks 2 - 5,000 -",
    ]
    note = "-8 is below the log start"
    assert run("reset", "idle", "--to", "-20", "--all-topics")[1][1:] == [
        f"clicks 1 12 0 -12 {note}",
        f"orders 0 12 0 -12 {note}",
    ]
    typed = ("reset", "idle", "--to", "earliest", "--topic", "orders", "--topic", "clicks:0", "--topic", "clicks:2")
    assert run(*typed) == (0, shown, DRY)
    assert groups.committed("idle") == before
    assert run(*typed, "--execute") == (0, [*shown, "idle: 3 offsets committed"], [])
    assert groups.committed("idle") == before | {("orders", 0): 0, ("clicks", 0): 0, ("clicks", 2): 5_000}


def test_a_reset_for_programs_says_whether_it_was_made(run: Run, groups: FakeGroups) -> None:
    reset = ("reset", "new", "--to", "50", "--topic", "orders", "--json")
    code, out, error = run(*reset)
    assert (code, error) == (0, [])
    shown = json.loads(out[0])
    assert (shown["group"], shown["executed"], shown["partitions"][0]["asked"]) == ("new", False, 50)
    assert "new" not in groups.groups
    assert json.loads(run(*reset, "--execute")[1][0])["executed"]
    assert groups.committed("new") == {("orders", 0): 40}


def test_a_reset_in_a_topic_of_the_broker_is_remarked(run: Run, broker: FakeBroker, groups: FakeGroups) -> None:
    broker.logs["__consumer_offsets"] = [broker.logs["orders"][0]]
    code, _, error = run("reset", "idle", "--to", "latest", "--topic", "__consumer_offsets", "--execute")
    assert (code, len(error)) == (0, 1)
    assert error[0].startswith("seglog: note: this is a topic of the broker's own; ")
    assert groups.committed("idle")["__consumer_offsets", 0] == 40


# --- delete -----------------------------------------------------------------------------------------------------------


def test_each_group_is_deleted_or_refused_by_itself(run: Run, groups: FakeGroups) -> None:
    code, out, error = run("delete", "app", "idle", "nobody")
    assert (code, out) == (4, ["idle: deleted"])
    assert error[0].startswith("seglog: group 'app' has live members: stop them first; members: member-1 (10.0.0.1)")
    assert error[1:] == ["seglog: there is no group nobody"]
    assert list(groups.groups) == ["app"]
    groups.groups["app"].members = []
    assert run("delete", "app", "app", "--json") == (0, ['[{"group": "app"}]'], [])


def test_offsets_of_a_topic_are_deleted(run: Run, groups: FakeGroups) -> None:
    groups.commit("idle", "clicks", 2, 9)
    assert run("delete", "idle", "--topic", "clicks:2") == (0, ["idle: 1 offset of clicks deleted"], [])
    code, out, error = run("delete", "idle", "--topic", "clicks", "--topic", "orders:3")
    assert (code, out) == (1, ["idle: 1 offset of clicks deleted"])
    assert error == ["seglog: group idle has committed nothing for orders"]
    code, out, _ = run("delete", "idle", "--topic", "orders", "--json")
    assert (code, json.loads(out[0])) == (0, [{"group": "idle", "topic": "orders", "partition": 0}])
    assert groups.committed("idle") == {}
    told = "seglog: members of group app read topic clicks: stop them first"
    assert run("delete", "app", "--topic", "clicks") == (4, [], [told])


def test_deleting_asks_in_a_terminal(run: Run, groups: FakeGroups) -> None:
    said = "Delete group idle with all committed offsets forever? [y/N] seglog: group idle is not deleted"
    assert run("delete", "idle", answer="\n") == (1, [], [said])
    said = "Delete what groups idle, app committed for orders forever? [y/N] seglog: groups idle, app are not deleted"
    assert run("delete", "idle", "app", "--topic", "orders", answer="no\n") == (1, [], [said])
    assert len(groups.committed("idle")) == 2
    assert run("delete", "idle", "--topic", "orders", answer="y\n")[0] == 0
    assert len(groups.committed("idle")) == 1
    assert run("delete", "idle", "--yes", answer="")[0] == 0
    assert "idle" not in groups.groups
