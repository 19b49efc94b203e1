"""The commands that give runs to other programs: `mcp`, `watch` and `log`."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench import metrics
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.text import counted
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import progress_bar, say
from ccl_bench.integrations.agents.allowed_folders import AllowedFolders
from ccl_bench.integrations.agents.server import agent_server
from ccl_bench.integrations.trackers import load_windows, open_tracker, parse_tracker
from ccl_bench.integrations.watching.gauges import OtlpPush, PrometheusPage
from ccl_bench.integrations.watching.watch import StoredResults, Watcher, WatchOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.integrations.watching.watch import MeasuredWindow, Sink

ABOUT_MCP = """\
The agent may list runs, inspect, diagnose, compare and replay them, and read rows of their tables. It reads \
runs only in the allowed folders, follows no link out of them, and changes nothing. An answer has at most \
8 kB, and includes problems in the data and a useful next call.

Exit status: 0 when the agent ends it; 2 wrong usage.
"""


mcp_app = options.app("mcp", ABOUT_MCP, [f"{PROGRAM} mcp --allow examples/runs"])


@mcp_app.default
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
    agent_server(AllowedFolders.of(allow or ["."])).run("stdio")
    return 0


ABOUT_WATCH = """\
DIR is the directory of one run, into which a profiler writes new traces every so many steps: folders such \
as iteration_100, or files whose names carry a time. A window is measured when none of its files has changed \
for a while, its traces are complete, and no rank is missing. Each window prints one line of JSON.

--listen serves the numbers of the last window to Prometheus, --otlp pushes them to a collector. A metric \
without a value is absent. Ctrl-C or SIGTERM stops the command.

Exit status: 0; 2 wrong usage; 4 the directory is missing or disappears.
"""


watch_app = options.app(
    "watch",
    ABOUT_WATCH,
    [
        f"{PROGRAM} watch outputs -o measured --listen 127.0.0.1:9464",
        f"{PROGRAM} watch outputs -o measured --once",
    ],
)


def _not_negative(_type: object, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ValueError("must be 0 or more")


Once = Annotated[bool, Parameter(help="Measure the windows that exist and exit, as for cron.")]
Kept = Annotated[
    str | None,
    Parameter(alias="-o", metavar="DIR", help="Directory for results, one file for each window."),
]
Metrics = Annotated[
    list[str] | None, Parameter(alias="-m", metavar="NAME", help="Metric to measure; all by default.")
]
RunName = Annotated[
    str | None,
    Parameter(metavar="NAME", help="Name of the run in the exported numbers; by default the name of DIR."),
]
Listen = Annotated[
    str | None, Parameter(metavar="HOST:PORT", help="Serve numbers to Prometheus at this address or port.")
]
Otlp = Annotated[
    str | None, Parameter(metavar="URL", help="Push numbers to an OpenTelemetry collector, over HTTP.")
]
To = Annotated[
    list[str],
    Parameter(
        metavar="TRACKER",
        help="Tracker: tensorboard:DIR, wandb:PROJECT or mlflow:EXPERIMENT; repeat it for several.",
    ),
]
Settle = Annotated[
    float,
    Parameter(
        metavar="SECONDS",
        help="Time without a change after which a file counts as complete; 10 by default.",
        validator=_not_negative,
    ),
]
Patience = Annotated[
    float,
    Parameter(
        metavar="SECONDS",
        help="Time to wait for a window that is cut short or lacks ranks; 300 by default.",
        validator=_not_negative,
    ),
]


@watch_app.default
def watch(
    directory: Annotated[str, Parameter(metavar="", help="Directory that traces are written into.")],
    /,
    *,
    once: Once = False,
    output: Kept = None,
    metric: Metrics = None,
    run: RunName = None,
    listen: Listen = None,
    otlp: Otlp = None,
    to: To | None = None,
    settle: Settle = 10.0,
    patience: Patience = 300.0,
    workload_card: options.Card = None,
    jobs: options.Jobs = None,
) -> int:
    """Watch a directory until stopped."""
    if "://" in directory:
        raise UsageError(f"{directory} cannot be watched", fix="name a local directory")
    root = Path(directory).expanduser()
    if not root.is_dir():
        problem = "is no directory" if root.exists() else "does not exist"
        raise InputError(problem, where=directory, fix="name the directory that traces are written into")
    root = root.resolve()
    registry = metrics.load()
    names = [registry.canonical(name) for name in metric or ()]
    names = names or [each.name for each in registry if not each.variant_of]
    kept_in = Path(output).resolve() if output else None
    if kept_in == root:
        raise UsageError(
            "results cannot be kept among the traces", fix="name another directory, or one in it"
        )
    how = WatchOptions(root, run or root.name, names, settle, patience, workload_card, jobs)
    with contextlib.ExitStack() as closing, contextlib.suppress(KeyboardInterrupt):
        sinks: list[Sink] = []
        if listen is not None:
            page = PrometheusPage(listen)
            closing.callback(page.close)
            _remark(f"numbers are at {page.address}")
            sinks.append(page)
        if otlp is not None:
            pushes = OtlpPush(otlp, _remark)
            closing.callback(pushes.close)
            sinks.append(pushes)
        sinks += _trackers(to or (), how.run, closing)
        store = StoredResults(kept_in) if kept_in else None
        if store:
            closing.callback(store.close)
        watcher = Watcher(how, store=store, sinks=sinks, report=_print_line, remark=_remark)
        if once:
            watcher.once()
        else:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            watcher.forever()
    return 0


def _trackers(names: Iterable[str], run: str, closing: contextlib.ExitStack) -> list[Sink]:
    """Return the trackers of these names, each closed at the end."""
    trackers = []
    for name in names:
        trackers.append(open_tracker(name, run))
        closing.callback(trackers[-1].close)
    return trackers


def _print_line(measured: MeasuredWindow, file: str) -> None:
    sys.stdout.write(measured.line(file).decode() + "\n")
    sys.stdout.flush()


def _remark(text: str) -> None:
    say(PROGRAM, text)


ABOUT_LOG = """\
RUN is a directory, a trace file, a file of results, or a directory that ccl-bench watch -o wrote. From such \
a directory, every window is logged with its step. A metric without a value is not logged; findings are \
logged as text and tags.

Exit status: 0; 1 the tracker refuses; 2 wrong usage; 4 nothing can be read.
"""


log_app = options.app(
    "log", ABOUT_LOG, [f"{PROGRAM} log examples/runs/llama-tiny-pp4-gloo --to tensorboard:events"]
)


@log_app.default
def log(
    run: Annotated[
        str, Parameter(metavar="", help="Run, file of results, or directory that ccl-bench watch wrote.")
    ],
    /,
    *,
    to: To,
    metric: Metrics = None,
    step: Annotated[
        int | None, Parameter(metavar="N", help="Step to log a run with; windows of a watch have their own.")
    ] = None,
    name: Annotated[str, Parameter(help="Name of the run in the tracker; by default the name of RUN.")] = "",
) -> int:
    """Log one run."""
    for each in to:
        parse_tracker(each)
    names = [metrics.load().canonical(each) for each in metric or ()]
    with progress_bar(1) as progress:
        windows = load_windows(run, names, step=step, name=name, progress=progress)
    with contextlib.ExitStack() as closing:
        for tracker in _trackers(to, windows[0].run, closing):
            for window in windows:
                tracker.show(window)
    count = sum(len(window.values) for window in windows)
    steps = counted(len(windows), "window")
    sys.stdout.write(f"logged {counted(count, 'number')} of {steps} to {', '.join(to)}\n")
    return 0
