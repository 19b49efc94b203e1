"""The command `ccl-bench completion`: scripts for shells, of cyclopts, with paths."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.metrics import PROGRAM as METRICS

if TYPE_CHECKING:
    from cyclopts import App

ABOUT = """Put the line of the example into ~/.bashrc. For zsh, put it into ~/.zshrc after compinit. For \
fish, write ccl-bench completion fish | source into its configuration.
"""

Shell = Literal["bash", "zsh", "fish"]

app = options.app("completion", ABOUT, [f'eval "$({PROGRAM} completion bash)"'])


@app.default
def completion(
    shell: Annotated[Shell, Parameter(converter=options.choice, help="Shell that reads the script.")], /
) -> int:
    """Print the script for a shell."""
    from ccl_bench.cli import commands
    from ccl_bench.cli.measure import metrics

    for name, command in (PROGRAM, commands.app()), (METRICS, metrics.app(METRICS)):
        sys.stdout.write(script(name, command, shell) + "\n")
    return 0


def script(program: str, command: App, shell: Shell) -> str:
    """Return the script that completes a program.

    A run is a text, because it may be a URL, and cyclopts completes none: here, what has no completion of its
    own is a path.
    """
    written = command.generate_completion(shell=shell)
    if shell == "bash":
        return written.replace("\ncomplete -F ", "\ncomplete -o bashdefault -o default -F ")
    if shell == "zsh":
        option = r"(\]:[\w-]+)(?=')"
        argument = r"('(?:\d+|\*):(?:[^':]|\\:|'\\'')+)(?=' \\)"
        written = re.sub(f"(?m)^( +'\\*?-.*{option}|^ +{argument})", r"\1:_files", written)
        # A script that is evaluated is not registered by its #compdef line.
        return f"{written}\ncompdef _cyclopts_{program} {program}"
    if any(not name.startswith("-") for name in command):
        return written.replace("-n __fish_use_subcommand -a", "-n __fish_use_subcommand -f -a")
    # Without subcommands, options follow arguments.
    return written.replace("-n __fish_use_subcommand ", "")
