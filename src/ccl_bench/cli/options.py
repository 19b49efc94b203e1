"""Options that several commands share, each with the same name, meaning and help everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Group, Parameter

from ccl_bench import __version__
from ccl_bench.cli.help import Help
from ccl_bench.result.step_choice import step_choice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.result.step_choice import StepChoice

Card = Annotated[
    str | None,
    Parameter(name="--workload-card", metavar="FILE", help="Workload card to use in place of the run's own."),
]
ProfileMode = Annotated[
    Literal["auto", "torch", "nsys"],
    Parameter(help="Whose traces to read where a run has both; auto lets each metric choose."),
]


def _positive(_type: object, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError("must be 1 or more")


Jobs = Annotated[
    int | None,
    Parameter(
        alias="-j",
        metavar="N",
        help="Processes that read traces; as many as cores by default.",
        validator=_positive,
    ),
]
NoCache = Annotated[
    bool,
    Parameter(name="--no-cache", help="Parse every trace anew, and keep no tables for the next command."),
]
Engine = Annotated[
    str,
    Parameter(
        metavar="ENGINE",
        help="Where traces are read: auto, local, processes, dask://HOST:PORT, or slurm with options as in "
        "slurm:queue=debug,cores=4.",
    ),
]


def _not_negative(_type: object, value: int | None) -> None:
    if value is not None and value < 0:
        raise ValueError("must be 0 or more")


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Steps:
    """Options that choose the steps which numbers rest on."""

    steps: Annotated[
        str | None, Parameter(metavar="STEPS", help="Steps that count, such as 3-5 or 2,4; all unless given.")
    ] = None
    skip_steps: Annotated[
        int | None,
        Parameter(
            metavar="N",
            help="Steps to leave out at the beginning of each recording window.",
            validator=_not_negative,
        ),
    ] = None
    marker: Annotated[
        str | None,
        Parameter(
            metavar="REGEX",
            help="Names of the ranges that are the steps; what the first group captures is a step's number.",
        ),
    ] = None

    @property
    def choice(self) -> StepChoice:
        """What was chosen; UsageError where that cannot be."""
        return step_choice(self.steps, self.skip_steps, self.marker)


EVERY_STEP = Steps()


Json = Annotated[bool, Parameter(name="--json", help="Print JSON in place of text.")]


def app(name: str, about: str, examples: Iterable[str]) -> App:
    """Return an empty command that looks and fails like the others."""
    made = App(
        name=name,
        help=about,
        help_epilogue="\n".join(["Example:", *(f"  {example}" for example in examples)]),
        help_format="plaintext",
        help_formatter=Help(),
        version=f"{name} {__version__}",
        default_parameter=Parameter(negative="", show_default=False),
        group_parameters=Group("Options"),
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for flag in ("--help", "--version"):
        made[flag].group = "Options"
    made["--help"].help = "Show this page."
    made["--version"].help = "Show the version."
    return made
