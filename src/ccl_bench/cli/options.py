"""Shared options of the commands, parsing of the command line, output files, and the layout of help."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_args

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
    convert,
)

from ccl_bench import __version__
from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean, spelling
from ccl_bench.cli import PROGRAM
from ccl_bench.cli.runner import announce_large, progress_bar
from ccl_bench.result.step_choice import step_choice
from ccl_bench.storage import written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cyclopts import Token
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

    from ccl_bench.api.measured_run import MeasuredRun
    from ccl_bench.engine import Progress
    from ccl_bench.result.step_choice import StepChoice

Card = Annotated[
    str | None,
    Parameter(name="--workload-card", metavar="FILE", help="Workload card to use in place of the run's own."),
]
Ceiling = Annotated[
    str | None,
    Parameter(
        metavar="FILE",
        help="Output of nccl-tests or rccl-tests on the same machines, or a folder of it, in place of the "
        "run's own.",
    ),
]


def choice(choices: Any, tokens: Sequence[Token]) -> Any:
    """Return the choice that is meant, in any case and with any hyphens; an unknown one is an error."""
    known_words = [word for each in (choices, *get_args(choices)) for word in get_args(each)]
    spellings = {spelling(word): word for word in known_words if isinstance(word, str)}
    token = tokens[0]
    return convert(choices, [token.evolve(value=spellings.get(spelling(token.value), token.value))])


ProfileMode = Annotated[
    Literal["auto", "torch", "nsys"],
    Parameter(
        converter=choice,
        help="Profiler whose traces to read if a run has both; auto lets each metric choose.",
    ),
]


def positive(_type: object, value: int | None) -> None:
    """Refuse a number below 1."""
    if value is not None and value < 1:
        raise ValueError("must be 1 or more")


Jobs = Annotated[
    int | None,
    Parameter(
        alias="-j",
        metavar="N",
        help="Processes that read traces; as many as cores by default.",
        validator=positive,
    ),
]
NoCache = Annotated[
    bool,
    Parameter(name="--no-cache", help="Parse every trace again, and keep no tables for the next command."),
]
Engine = Annotated[
    str,
    Parameter(
        metavar="ENGINE",
        help="Where traces are read: auto, local, processes, dask://HOST:PORT, or slurm with options as in "
        "slurm:queue=debug,cores=4.",
    ),
]


Memory = Annotated[
    str | None,
    Parameter(
        metavar="SIZE",
        help="Memory that reading one trace may take, such as 8GB; by default 1 GB, or 1.5 times "
        "what a file of its kind and size usually takes.",
    ),
]


def not_negative(_type: object, value: int | None) -> None:
    """Refuse a number below 0."""
    if value is not None and value < 0:
        raise ValueError("must be 0 or more")


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class StepOptions:
    """Options that choose the steps of which numbers are computed."""

    steps: Annotated[
        str | None, Parameter(metavar="STEPS", help="Steps to use, such as 3-5 or 2,4; all by default.")
    ] = None
    skip_steps: Annotated[
        int | None,
        Parameter(
            metavar="N",
            help="Steps to leave out at the beginning of each recording window.",
            validator=not_negative,
        ),
    ] = None
    marker: Annotated[
        str | None,
        Parameter(
            metavar="REGEX",
            help="Pattern for the names of step ranges; its first group captures the number of a step.",
        ),
    ] = None
    program: Annotated[
        str | None,
        Parameter(
            metavar="NAME",
            help="Program of a profile of XLA whose runs are the steps, such as jit_train_step.",
        ),
    ] = None

    @property
    def choice(self) -> StepChoice:
        """What was chosen; UsageError if that cannot be."""
        return step_choice(self.steps, self.skip_steps, self.marker, self.program)


EVERY_STEP = StepOptions()


class ReadingArguments(TypedDict):
    """How the traces of a run are read, as functions of the library take it."""

    profile_mode: str
    steps: str | None
    skip_steps: int | None
    marker: str | None
    program: str | None
    jobs: int | None
    use_cache: bool


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Options that state how the traces of a run are read, and which of its steps count."""

    profile_mode: ProfileMode = "auto"
    jobs: Jobs = None
    no_cache: NoCache = False
    engine: Engine = "auto"
    memory: Memory = None
    steps: StepOptions = EVERY_STEP

    @property
    def arguments(self) -> ReadingArguments:
        """The options as functions of the library take them."""
        return {
            "profile_mode": self.profile_mode,
            "steps": self.steps.steps,
            "skip_steps": self.steps.skip_steps,
            "marker": self.steps.marker,
            "program": self.steps.program,
            "jobs": self.jobs,
            "use_cache": not self.no_cache,
        }

    @contextlib.contextmanager
    def in_use(self, traces: int = 1) -> Iterator[Progress | None]:
        """Read so many traces with the chosen engine, and yield the function that shows the progress."""
        # what a command that reads no trace does without
        from ccl_bench.engine import use_engine
        from ccl_bench.trace.memory import parse_size, use_memory

        bound = parse_size(self.memory) if self.memory else None
        with use_engine(self.engine), use_memory(bound), progress_bar(traces) as progress:
            yield progress

    @contextlib.contextmanager
    def open(
        self, place: str, *, card: str | None = None, config: str | None = None, ceiling: str | None = None
    ) -> Iterator[MeasuredRun]:
        """Open a run whose traces are read as the options state, with a bar while that takes long."""
        from ccl_bench.api import measured_run  # as above

        measured = measured_run.open(place, card=card, config=config, ceiling=ceiling, **self.arguments)
        with self.in_use(len(measured.traces)) as measured.progress:
            announce_large(measured.traces)
            yield measured


DEFAULT_READING = ReadingOptions()


TextOrJson = Annotated[
    Literal["text", "json"],
    Parameter(name="--format", alias="-f", converter=choice, help="Format of the output."),
]

Why = Annotated[
    bool, Parameter(name="--why", help="List also what cannot be answered from this run, with the reasons.")
]


def app(name: str, about: str, examples: Iterable[str]) -> App:
    """Return an empty command that looks and fails like the others."""
    command = App(
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
        command[flag].group = "Options"
    command["--help"].help = "Show this page."
    command["--version"].help = "Show the version."
    return command


Output = Annotated[
    str | None, Parameter(alias="-o", metavar="FILE", help="File to write in place of stdout.")
]
Force = Annotated[bool, Parameter(help="Overwrite a file of others, or one that was edited.")]


def file_to_write(output: str, *, force: bool) -> Path:
    """Return the file to write; raise UsageError if one already exists, or its folder does not."""
    path = Path(output)
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", fix="create it first, or name another")
    refuse_existing(path, force=force)
    return path


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raise UsageError if a file cannot be written because something else has its name.

    A file that a command wrote and nobody changed since may be replaced.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory", fix="name a file")
    if path.exists() and not force and not written.is_as_written(path):
        raise UsageError(f"{path} already exists", fix="give --force to overwrite it, or another name")


def show_written(path: Path, about: str = "") -> None:
    """Print the name of a written file, and what to know about it; the next command may replace it."""
    from ccl_bench.report.console import show

    written.remember(path)
    about = about or "opens in a browser" * (path.suffix.lower() in {".html", ".htm"})
    show(f"{path}  {about}".rstrip())


class Help:
    """Formatter for cyclopts: description before usage, no boxes."""

    def __init__(self) -> None:
        self._usage: Any = None

    def render_usage(self, _console: Console, _options: ConsoleOptions, usage: Any) -> None:
        """Keep the usage line until the description is printed."""
        self._usage = usage

    def render_description(self, console: Console, _options: ConsoleOptions, description: Any) -> None:
        """Print what the command does, then how it is called."""
        from rich.text import Text

        console.print(description)
        console.print(Text.assemble(("Usage: ", "bold"), str(self._usage).removeprefix("Usage: ").strip()))

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print one group of options or commands."""
        from rich.table import Table
        from rich.text import Text

        if not panel.entries:
            return
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="cyan", no_wrap=True)
        grid.add_column()
        for entry in panel.entries:
            names = [*entry.positive_shorts, *entry.positive_names] or [entry.positional_label or ""]
            label = " ".join(filter(None, (", ".join(names), entry.metavar)))
            description: Any = entry.description or Text()
            if entry.choices:
                renderable = getattr(description, "primary_renderable", description)
                plain = str(getattr(renderable, "plain", renderable)).strip()
                description = Text.assemble(plain, (f" [{'|'.join(entry.choices)}]", "dim"))
            grid.add_row(Text(f"  {label}"), description)
        console.print(Text(f"\n{panel.title}:", "bold"))
        console.print(grid, width=options.max_width)


SEE_HELP = "--help shows how it is used"


def call(app: App, arguments: list[str]) -> int:
    """Call a command and return its exit status; UsageError for words that it does not take."""
    try:
        return app(arguments) or 0
    except CycloptsError as error:
        raise usage_error(error) from error


def usage_error(error: CycloptsError) -> UsageError:
    """Return the error, with what was probably meant."""
    match error:
        case UnknownCommandError():
            return _unknown_command(error)
        case UnknownOptionError():
            return _unknown_option(error)
        case UnusedCliTokensError():
            unused = error.unused_tokens or []
            is_value = any("=" in token for token in unused)
            fix = "repeat the option before each value" if is_value else SEE_HELP
            return UsageError(f"unexpected argument: {' '.join(unused)}", fix=fix)
        case RepeatArgumentError():
            return UsageError(f"{error.token.keyword} is given several times", fix="give it once")
        case MissingArgumentError() if error.keyword is None and error.argument is not None:
            about = (error.argument.parameter.help or SEE_HELP).rstrip(".")
            return UsageError(f"{error.argument.name} is missing", fix=f"give it: {about}")
        case CoercionError():
            return _unfit_value(error)
        case ValidationError():
            return UsageError(_text(error).replace(". ", ": ", 1), fix=SEE_HELP)
    return UsageError(_text(error), fix=SEE_HELP)


_NUMBERS: dict[type | None, str] = {int: "a whole number", float: "a number"}


def _unfit_value(error: CoercionError) -> UsageError:
    text, _, choices = _text(error).partition(". Choose from: ")
    choices_text = choices.partition(". Did you mean")[0].replace('"', "")
    number = _NUMBERS.get(error.target_type)
    if number and error.token:
        return UsageError(
            f"{error.token.keyword} {error.token.value} is not {number}", fix=f"write {number} without a unit"
        )
    return UsageError(text, fix=f"one of: {choices_text}" if choices_text else SEE_HELP)


def _text(error: CycloptsError) -> str:
    """Return the message of cyclopts as a clause."""
    text = str(error).strip().rstrip(".")
    return text[:1].lower() + text[1:]


def _unknown_command(error: UnknownCommandError) -> UsageError:
    words = error.unused_tokens or [""]
    word = words[0]
    if word.startswith("-"):
        return UsageError(f"unknown option {word}", fix=SEE_HELP)
    if "://" in word or Path(word).exists():
        return UsageError(f"{word} is a run, not a command", fix=f"{PROGRAM} inspect {shlex.join(words)}")
    command_names = _commands_of(error.app)
    families = {name: error.app[name] for name in command_names if error.app}
    below = [f"{name} {each}" for name, family in families.items() for each in _commands_of(family)]
    hint = did_you_mean(word, command_names) or did_you_mean(word, below)
    return UsageError(f"unknown command {word!r}", fix=hint or f"known: {', '.join(command_names)}")


def _commands_of(app: App | None) -> list[str]:
    return sorted(name for name in app or () if not name.startswith("-"))


def _unknown_option(error: UnknownOptionError) -> UsageError:
    word = (error.token.keyword or error.token.value).partition("=")[0]
    option_names = [
        name for argument in error.argument_collection for name in argument.names if name[:2] == "--"
    ]
    # Other commands and programs have these options.
    if word in {"--trace", "-t", "--run"}:
        fix = "name the run without an option"
    elif word in {"--json", "--text", "--csv", "--html"} and "--format" in option_names:
        fix = f"give --format {word[2:]}"
    elif word in {"--output", "-o"} and "--format" in option_names:
        fix = "append > FILE to the command: it prints to stdout"
    else:
        fix = did_you_mean(word, option_names) or SEE_HELP
    return UsageError(f"unknown option {word}", fix=fix)
