"""The tree of errors; every error has a fix and an exit status.

CclBenchError            1  an unexpected failure
├── UsageError           2  the command or call is wrong
├── NoValue              3  there is no number, and this is why
│   ├── NotApplicable       the metric makes no sense for this run
│   └── NotMeasurable       the run lacks, or has damaged, what the metric needs
└── InputError           4  a file is missing, unreadable or refused
"""

from __future__ import annotations

from functools import partial


class CclBenchError(Exception):
    """An error a user can read: what happened, where, and what to do about it."""

    exit_status = 1

    def __init__(self, message: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        """One line saying where and what, and the fix on a second."""
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  fix: {self.fix}" if self.fix else head

    def __reduce__(self) -> tuple[object, ...]:
        """Keep `where` and `fix` when the error travels between processes."""
        return partial(type(self), where=self.where, fix=self.fix), (self.message,)


class UsageError(CclBenchError):
    """The command line or the call is wrong."""

    exit_status = 2


class NoValue(CclBenchError):  # noqa: N818 (an answer, not an error)
    """A metric has no value here, which is an answer and not a failure.

    It `is_repairable` where something that a person can add to this very run gives a value: a fact, the
    traces of other ranks, a whole file in place of a damaged one. `causes` are codes of findings, the most
    likely first: the first one that the run has is the cause, and its fix replaces `fix`.
    """

    exit_status = 3

    def __init__(
        self,
        message: str,
        *,
        where: str = "",
        fix: str = "",
        is_repairable: bool = False,
        causes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, where=where, fix=fix)
        self.is_repairable = is_repairable
        self.causes = causes

    def __reduce__(self) -> tuple[object, ...]:
        """Keep everything when the error travels between processes."""
        kind = partial(
            type(self),
            where=self.where,
            fix=self.fix,
            is_repairable=self.is_repairable,
            causes=self.causes,
        )
        return kind, (self.message,)


class NotApplicable(NoValue):
    """The metric makes no sense for this run, such as a pipeline bubble without a pipeline."""


class NotMeasurable(NoValue):
    """The metric makes sense, but its inputs are missing or damaged in this run."""


class InputError(CclBenchError):
    """A file or address is missing, unreadable, or refused as unsafe."""

    exit_status = 4
