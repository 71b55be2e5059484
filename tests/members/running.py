"""Groups of members through rounds of faults, and everything that was told meanwhile."""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import seglog
from tests.members import checks
from tests.members.beside import Feeder, Watcher
from tests.members.lines import Assigned, Described, Handled, Told
from tests.members.programs.telling import SESSION_SECONDS
from tests.members.schedule import Step, rounds_of
from tests.members.workers import Crew, Program, Worker
from tests.processes import PATIENCE_SECONDS, Daemon, kafka_daemon

PARTITIONS: Final = 12
LOOKS_A_ROUND: Final = 5
HANDLED_A_ROUND: Final = 5 * PARTITIONS

_WRONGS_TOLD: Final = 20
_TOPIC: Final = "t"
_STOPPED_SECONDS: Final = SESSION_SECONDS + 1


class Run:
    """Groups that work on a topic which is written to without end, until ``finish``."""

    def __init__(self, folder: Path, broker: Daemon, groups: Mapping[str, Sequence[Program]]) -> None:
        folder.mkdir()
        self.told = Told(folder)
        self._broker = broker
        self._groups = list(groups)
        self._handled: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self._members: dict[str, str] = {}
        self._described: dict[str, Described] = {}
        self._looks: dict[str, int] = defaultdict(int)
        self.crew = Crew(folder, groups, _TOPIC, broker.address, f"127.0.0.1:{broker.kafka_port}")
        self.feeder = Feeder(broker.address, _TOPIC, PARTITIONS)
        self.watcher = Watcher(broker.address, _TOPIC, self._groups, folder / "watcher.jsonl")

    # --- What was told ------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Take note of what is new."""
        for line in self.told.read():
            match line:
                case Handled():
                    self._handled[line.group].add((line.partition, line.offset))
                case Assigned():
                    self._members[line.who] = line.member
                case Described():
                    self._described[line.group] = line
                    self._looks[line.group] += bool(line.owners)

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for something that happens some time, while everyone lives."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        self.read()
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}; {self._described}, {self._members}"
            time.sleep(0.1)
            for one in (self.crew, self.feeder, self.watcher):
                one.check()
            self.read()

    def _is_settled(self, since: float) -> bool:
        """Whether members that live now, and no others, have all partitions between them, by a later look."""
        for group in self._groups:
            found = self._described.get(group)
            if found is None or found.begun < since or found.state != "Stable":
                return False
            mine = [self._members.get(worker.name) for worker in self.crew.of(group)]
            if set(found.members) != set(mine) or sorted(found.owners) != list(range(PARTITIONS)):
                return False
        return True

    def until_settled(self) -> None:
        """Return when all members of all groups have their partitions."""
        since = time.monotonic()
        self.until("all members have their partitions", lambda: self._is_settled(since))

    def until_worked_on(self) -> None:
        """Return when all groups have handled some records more, and the watcher has seen some of it."""
        handled = {group: len(self._handled[group]) + HANDLED_A_ROUND for group in self._groups}
        looks = {group: self._looks[group] + LOOKS_A_ROUND for group in self._groups}
        self.until("all groups work", lambda: all(len(self._handled[one]) >= handled[one] for one in handled))
        self.until("the watcher sees it", lambda: all(self._looks[one] >= looks[one] for one in looks))

    # --- What happens -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create the topic and start everyone."""
        with seglog.connect(self._broker.address) as client:
            client.create_topic(_TOPIC, PARTITIONS)
        self.feeder.start()
        self.watcher.start()
        self.crew.start_all()
        self.until_settled()

    def go_through(self, steps: Sequence[Step]) -> None:
        """A round of faults; return when all are well again, and have worked on."""
        for step in steps:
            time.sleep(step.pause_seconds)
            self._do(step)
        stopped = [(of, one) for of in self._groups for one in self.crew.of(of) if one.stopped_at is not None]
        for group, worker in sorted(stopped, key=lambda one: one[1].is_late):
            self.until(f"{worker.name} is no member any more", self._is_thrown_out(group, worker))
            if worker.is_late:
                self.until_worked_on()
            worker.resume()
        self.until_settled()
        self.until_worked_on()

    def _do(self, step: Step) -> None:
        if step.do == "kill broker":
            self._check_log()
            self._broker.kill()
            self._broker.start()
        elif step.do == "kill member":
            self.crew.workers[step.group, step.number].kill()
            self.crew.start(step.group, step.number)
        else:
            self.crew.workers[step.group, step.number].stop(is_late=step.is_late)

    def _check_log(self) -> None:
        log = self._broker.log_text()
        assert "Traceback" not in log, log

    def _is_thrown_out(self, group: str, worker: Worker) -> Callable[[], bool]:
        """Whether its session has timed out, and the group goes on without it."""
        assert worker.stopped_at is not None
        since = worker.stopped_at + _STOPPED_SECONDS

        def is_thrown_out() -> bool:
            found = self._described.get(group)
            if found is None or found.begun < since or self._members[worker.name] in found.members:
                return False
            return not worker.is_late or (found.state == "Stable" and len(found.owners) == PARTITIONS)

        return is_thrown_out

    def finish(self) -> None:
        """Have everything handled, end everyone, and check all that was told."""
        self.feeder.end()
        count = self.feeder.sent * PARTITIONS
        self.until("everything is handled", lambda: all(len(self._handled[one]) >= count for one in self._groups))
        self.until_settled()
        self.watcher.end()
        self.crew.kill()
        self.read()
        self._check_log()
        code = self._broker.stop()
        assert code == 0, f"the broker ended with {code}"
        ends = dict.fromkeys(range(PARTITIONS), self.feeder.sent)
        wrongs = checks.wrongs(self.told.lines, ends)
        assert not wrongs, "\n".join([f"{len(wrongs)} wrongs", *wrongs[:_WRONGS_TOLD]])
        mute = checks.without_generation(self.told.lines)
        assert not mute, f"no generation was told by {mute}"

    def abandon(self) -> None:
        """End what has not ended."""
        self.crew.kill()
        self.watcher.is_over.set()
        self.feeder.abandon()


@contextmanager
def running(folder: Path, groups: Mapping[str, Sequence[Program]]) -> Iterator[Run]:
    """Groups on a broker of their own, which keeps its ports."""
    with kafka_daemon(folder / "data") as broker:
        run = Run(folder / "told", broker, groups)
        try:
            run.start()
            yield run
        except BaseException as error:
            error.add_note(f"{folder} has what everyone told")
            raise
        finally:
            run.abandon()


def run_through_faults(folder: Path, groups: Mapping[str, Sequence[Program]], *, rounds: int, seed: int) -> None:
    """Have groups go through rounds of faults, in each of which the broker dies, and check all that was told."""
    (members,) = {len(programs) for programs in groups.values()}
    schedule = rounds_of(random.Random(seed), list(groups), members=members, rounds=rounds)
    print(f"seed {seed}")
    with running(folder, groups) as run:
        for number, steps in enumerate(schedule):
            try:
                run.go_through(steps)
            except BaseException as error:
                error.add_note(f"seed {seed}, in round {number + 1} of {rounds}: {steps}")
                raise
        run.finish()
        for group in groups:
            looks = checks.looks(run.told.lines, group)
            assert looks >= LOOKS_A_ROUND * rounds, f"the watcher looked at {group} {looks} times"
