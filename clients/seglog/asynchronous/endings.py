"""Which exception a client's block raises, when it was left by one and tasks of the client have failed, too."""


def first_of(errors: "list[BaseException]", cancelled: type[BaseException]) -> BaseException:
    """The exception to raise: an interrupt before an error before a cancellation; other errors become notes on it."""

    def urgency(error: BaseException) -> int:
        if isinstance(error, cancelled):
            return 2
        return 1 if isinstance(error, Exception | BaseExceptionGroup) else 0

    first, *others = sorted(errors, key=urgency)
    for other in others:
        if not isinstance(other, cancelled):
            first.add_note(f"seglog: there was another error: {other!r}")
    return first


def beside(error: BaseException, failure: BaseException | None, cancelled: type[BaseException]) -> BaseException:
    """The exception to raise by a block that was left by ``error``, when ``failure`` is that of its tasks."""
    if failure is None or isinstance(failure, cancelled):
        return error
    if isinstance(failure, Exception):
        error.add_note(f"seglog: a task of the client failed, too: {failure!r}")
        return error
    return failure
