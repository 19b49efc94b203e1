"""How help looks: what the command does, how it is called, its options aligned, and an example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions


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
            grid.add_row(Text(f"  {_names(entry)}"), _description(entry))
        console.print(Text(f"\n{panel.title}:", "bold"))
        console.print(grid, width=options.max_width)


def _names(entry: HelpEntry) -> str:
    """Return the names of an option, the short one first."""
    names = [*entry.positive_shorts, *entry.positive_names] or [entry.positional_label or ""]
    label = ", ".join(names)
    return f"{label} {entry.metavar}" if entry.metavar else label


def _description(entry: HelpEntry) -> Any:
    from rich.text import Text

    text = entry.description or Text()
    if entry.choices:
        return Text.assemble(_plain(text), (f" [{'|'.join(entry.choices)}]", "dim"))
    return text


def _plain(text: Any) -> str:
    shown = getattr(text, "primary_renderable", text)
    return str(getattr(shown, "plain", shown)).strip()
