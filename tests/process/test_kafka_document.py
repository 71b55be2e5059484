"""docs/KAFKA.md: its program runs and prints what the page says."""

from pathlib import Path

from seglog.testing import Broker
from tests.pages import programs_of, run_program
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "KAFKA.md").read_text(encoding="utf-8")


def test_the_program_of_the_page_prints_what_it_says(tmp_path: Path) -> None:
    program, printed = (
        "".join(parts) for parts in zip(*programs_of(PAGE), strict=True)
    )  # the later ones go on with the first
    assert program
    with Broker() as broker:
        program = program.replace("localhost:9192", broker.address).replace("localhost:9092", broker.kafka_address)
        done = run_program(tmp_path / "program.py", program)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
