"""The command `ccl-bench card`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ccl_bench import card as cards
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.text import encode_json, plain
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import say
from ccl_bench.collect.describe.card_from_run import shown_card_values
from ccl_bench.collect.describe.complete_card import card_path, complete_card
from ccl_bench.report.console import Text, aligned, heading, indented, show
from ccl_bench.report.inspection import issues
from ccl_bench.run import discover_run

if TYPE_CHECKING:
    from ccl_bench.collect.describe.complete_card import CompletedCard

ABOUT = """\
It fills the empty fields with what traces, side files and the record of the environment show, and lists \
what is missing for a ranking. On a terminal it asks for the missing fields; with --set or --yes it asks \
nothing. What the card states already stays, as do its comments and its order; only --set replaces a value.

A field is named by its path or the end of it, such as precision or framework.version. KEY= empties it.

Exit status: 0; 2 wrong usage, or a value that its field cannot have; 4 the card has an error, or cannot be \
changed.
"""

_RUN = "examples/runs/llama-tiny-pp4-gloo"

app = options.app(
    "card",
    ABOUT,
    [
        f"{PROGRAM} card runs/first",
        f"{PROGRAM} card runs/first --set precision=bf16 --set framework.version=2.9",
    ],
)


@app.default
def card(
    run: Annotated[str, Parameter(metavar="", help="Run directory, trace file, or workload card.")],
    /,
    *,
    changes: Annotated[
        list[str] | None,
        Parameter(
            name="--set",
            metavar="KEY=VALUE",
            negative="",
            help="Value of a field; repeat it for several. Words of a list are separated by commas.",
        ),
    ] = None,
    yes: Annotated[bool, Parameter(alias="-y", help="Ask nothing: take what the run shows.")] = False,
    form: options.TextOrJson = "text",
    jobs: options.Jobs = None,
    no_cache: options.NoCache = False,
) -> int:
    """Fill the card of a run."""
    values = _values(changes or [])
    place = Path(run)
    is_card = place.is_file() and place.suffix.lower() in {".yaml", ".yml"}
    described = discover_run(place.parent if is_card else run, card=run if is_card else None)
    card_path(described)  # raises UsageError before traces are read
    with options.DEFAULT_READING.in_use(len(described.traces)) as progress:
        shown = shown_card_values(described, jobs=jobs, use_cache=not no_cache, progress=progress)
    is_asking = not (changes or yes or form == "json") and sys.stdin.isatty() and sys.stdout.isatty()
    if is_asking:
        show(Text("Enter takes the value in brackets, - leaves a field empty, Ctrl-D ends the questions."))
    completed = complete_card(described, shown, values, _ask if is_asking else None)
    if is_asking:
        sys.stdout.write("\n")
    for remark in completed.remarks:
        say(PROGRAM, remark)
    if form == "json":
        sys.stdout.write(encode_json(completed).decode() + "\n")
    else:
        _show(completed)
    has_errors = any(issue.severity == "error" for issue in completed.issues)
    return InputError.exit_status if has_errors else 0


def _values(changes: list[str]) -> dict[str, Any]:
    """Return path in the card → value, each as the card is read."""
    values: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not (key and equals):
            raise UsageError(f"{change!r} sets nothing", fix="write KEY=VALUE, as in precision=bf16")
        path = cards.field_path(key)
        values[path] = cards.read_value(path, text)
    return values


def _ask(path: str, default: Any) -> Any:
    """Return the answer to the question for one field, which its field can have; None for no value."""
    text = "" if default is None else _text(default)
    sys.stdout.write(f"\n{path}: {cards.field_meaning(path)}\n")
    while True:
        answer = input(f"[{plain(text)}] > " if text else "> ").strip()
        if not answer:
            return default
        try:
            return cards.read_value(path, answer)
        except UsageError as error:
            sys.stdout.writelines(f"{plain(line)}\n" for line in str(error).splitlines())


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else cards.yaml_scalar(value)


def _show(completed: CompletedCard) -> None:
    show(Text(completed.card))
    for title, values in (("Set", completed.changed), ("Filled with what the run shows", completed.filled)):
        rows = [(path, "emptied" if value is None else _text(value)) for path, value in values.items()]
        if rows:
            show(heading(title), indented(aligned(("", ""), rows)))
    if completed.issues:
        show(heading("To check"), issues(completed.issues))
    if completed.lacking:
        rows = [*completed.lacking.items()]
        show(heading("Not ranked without"), indented(aligned(("", ""), rows)))
        changes = " ".join(f"--set {path.rpartition('.')[2]}=…" for path in completed.lacking)
        show(Text(f"  fix: ccl-bench card {completed.card} {changes}"))
    else:
        show(Text("The card has every field that ranking needs."))
