"""What a verification of an edited model found; made by compare/verify.py, named here so that surgeon can."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRun:
    """Both models on one set of inputs through one runner.

    inputs: the kind of inputs in words, with sizes where they are not the usual ones ("zeros", "N=3").
    runner: "ort" or "engine".
    value: the output that came out worst, "" when the run ended before there was one.
    equal: whether all bits of all outputs are equal.
    error, limit: how far off that output is and what rounding explains, both relative to the largest finite
        element of the original's; inf where NaN or Inf differ, or shapes or dtypes do.
    reason: where the limit comes from, or in words what differs.
    """

    inputs: str
    runner: str
    agrees: bool
    value: str = ""
    equal: bool = False
    error: float = 0.0
    limit: float = 0.0
    reason: str = ""

    def __str__(self) -> str:
        place = f" at '{self.value}'" if self.value else ""
        found = "all bits equal" if self.equal else self.reason
        return f"{self.runner}, {self.inputs}{place}: {found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRun:
    """A part of the verification that was left out. what: a runner, or inputs. why: the reason in words.

    important: kinds of inputs that often show a wrong edit were run by nobody.
    """

    what: str
    why: str
    important: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Whether an edited model still is the original one.

    interface: differences of inputs, outputs, opsets and metadata, in words.
    faults: why the edited model is not valid, in words.
    runs: what was run, in order; the runs end with the first set of inputs that shows a difference.
    not_run: what was not, and why.
    remarks: what is no difference but worth knowing, in words.
    """

    interface: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    runs: tuple[VerifiedRun, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether no difference was found, however little was run."""
        return not self.differences

    @property
    def verified(self) -> bool:
        """Whether outputs were compared and agree; agreement without a run proves nothing."""
        return self.agrees and bool(self.runs)

    def __bool__(self) -> bool:
        return self.verified

    @property
    def differences(self) -> tuple[str, ...]:
        """All that is wrong, in words, the most telling first."""
        return (*self.interface, *self.faults, *(str(run) for run in self.runs if not run.agrees))

    @property
    def worst(self) -> VerifiedRun | None:
        """The run that came closest to its limit, or went furthest past it."""
        return max(self.runs, key=_share, default=None)

    def summary(self) -> str:
        """Return the outcome in one line."""
        if not self.agrees:
            more = f" (and {len(self.differences) - 1} more)" if len(self.differences) > 1 else ""
            return f"differs: {self.differences[0]}{more}"
        if self.worst is None:
            why = f": {self.not_run[0]}" if self.not_run else ""
            return f"not verified, nothing was run{why}"
        kinds = len({run.inputs for run in self.runs})
        runners = " and ".join(dict.fromkeys(run.runner for run in self.runs))
        how = f"within rounding ({self.worst.error:.1e} of {self.worst.limit:.1e})"
        if all(run.equal for run in self.runs):
            how = "all bits equal"
        return f"verified: {kinds} kind{'s' * (kinds != 1)} of inputs through {runners}, {how}"


def _share(run: VerifiedRun) -> float:
    if not run.agrees:
        return float("inf")
    return run.error / run.limit if run.limit else 0.0


Verify: TypeAlias = Callable[[ir.Model, ir.Model], Verification]
"""(original, edited) → what a verification found."""
