"""A checkup's result: what was looked at, what was found, how that is judged, and what to do about it."""

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """How a finding is judged, best first."""

    OK = "ok"
    UNKNOWN = "unknown"
    """It could not be looked at; the finding says why."""
    WARNING = "warning"
    """It works, and will not always."""
    PROBLEM = "problem"


class Check(NamedTuple):
    """One line of the doctor's. ``remedy`` says what to do; it is empty where nothing is to be done."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Check:
    """Nothing is to be done."""
    return Check(name, Verdict.OK, found)


def unknown(name: str, why: str, remedy: str = "") -> Check:
    """It could not be looked at from here."""
    return Check(name, Verdict.UNKNOWN, why, remedy)


def warning(name: str, found: str, remedy: str) -> Check:
    """It works, and will not always."""
    return Check(name, Verdict.WARNING, found, remedy)


def problem(name: str, found: str, remedy: str) -> Check:
    """It does not work."""
    return Check(name, Verdict.PROBLEM, found, remedy)
