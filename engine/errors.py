"""What every part of graphdoc raises when the user, the model or a runner is at fault.

An error names the cause, where it lies, and the next step; the command line prints the three on
lines of their own and exits with the class's code (docs/exit-codes.md). Anything else that escapes
is a bug in graphdoc.
"""

from typing import ClassVar


class GraphdocError(Exception):
    """Base of all expected failures.

    cause: one line, what is wrong, names quoted as the user wrote them.
    where: the file, value, node or option it concerns.
    next_step: a command or an action that helps.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, cause: str, *, where: str | None = None, next_step: str | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.where = where
        self.next_step = next_step

    def lines(self) -> list[str]:
        """Return the printed form, one string a line, without the leading symbol."""
        rows = [self.cause]
        if self.where:
            rows.append(f"  where  {self.where}")
        if self.next_step:
            rows.append(f"  next   {self.next_step}")
        return rows

    def __str__(self) -> str:
        return "\n".join(self.lines())


class UsageError(GraphdocError):
    """The command or call cannot be understood: an option, a missing shape, a name that matches nothing."""

    exit_code = 2


class ModelError(GraphdocError):
    """The model is not valid or cannot be read."""

    exit_code = 3


class InputError(GraphdocError):
    """The inputs do not fit the model: names, dtypes, shapes, or an unreadable file."""

    exit_code = 3


class RunnerError(GraphdocError):
    """A runner is missing or failed while it ran the model."""

    exit_code = 4


class UnsupportedOperatorError(RunnerError):
    """A runner has no implementation of an operator that the model uses."""


class NothingComparedError(GraphdocError):
    """No value exists on both sides."""

    exit_code = 5
