"""The commands that give runs to other programs: `ccl-bench mcp`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.cli import options

if TYPE_CHECKING:
    from cyclopts import App

ABOUT_MCP = """Serve runs to an agent over the Model Context Protocol, on stdin and stdout.

The agent may list runs, look into them, diagnose, compare and replay them, and read rows of their tables. \
It reads runs in the allowed folders only, through no link that leaves them, and changes nothing. An answer \
has at most 8 kB, with what is wrong with the data and the call that makes sense next.

Exit status: 0 when the agent ends it; 2 wrong usage.
"""


def mcp_command(program: str) -> App:
    """Return the command."""
    made = options.app("mcp", ABOUT_MCP, [f"{program} mcp --allow examples/runs"])
    made.default(mcp)
    return made


def mcp(
    *,
    allow: Annotated[
        list[str] | None,
        Parameter(
            metavar="DIR",
            help="Folder whose runs may be read; repeat it for more; the current one by default.",
        ),
    ] = None,
) -> int:
    """Serve until stdin ends."""
    from ccl_bench.integrations.agents.allowed_folders import AllowedFolders
    from ccl_bench.integrations.agents.server import agent_server

    agent_server(AllowedFolders.of(allow or ["."])).run("stdio")
    return 0
