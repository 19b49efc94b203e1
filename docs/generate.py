"""Build the manual from the pages in this folder and pages generated from the code.

    python docs/generate.py FOLDER

FOLDER then holds Markdown for every metric, table, device and command, and `zensical.toml` to
build a site from it.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from command_help import PROGRAMS, help_of, subcommands
from render_notebooks import NOTEBOOKS, render

from ccl_bench import __version__, diagnosis, metrics
from ccl_bench.analysis.derived import DERIVED, tables_behind
from ccl_bench.catalog import devices
from ccl_bench.catalog.assumptions import assumed_in
from ccl_bench.comparison.compare import json_schema as comparison_schema
from ccl_bench.diagnosis.diagnose import inputs_behind
from ccl_bench.evaluate.report_data import collect_report_data
from ccl_bench.report.page import report_page
from ccl_bench.report.render.images import image
from ccl_bench.result import json_schema
from ccl_bench.result.report_data import json_schema as report_schema
from ccl_bench.run import open_run
from ccl_bench.schema import TABLES
from ccl_bench.trace import formats

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ccl_bench.catalog.assumptions import Assumption
    from ccl_bench.catalog.devices import Device
    from ccl_bench.diagnosis import Diagnosis
    from ccl_bench.metrics import Metric
    from ccl_bench.schema import Table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
EXAMPLE = ROOT / "examples" / "runs" / "llama-tiny-fsdp2-tp2-gloo"

DIRECTION = {
    "higher": "higher is better",
    "lower": "lower is better",
    "neither": "neither direction is better",
}
WRITTEN = {
    "Start": {
        "Five minutes with ccl-bench": "index.md",
        "From traces to an answer": "tutorial.md",
        "Installing": "install.md",
        "Questions and answers": "faq.md",
    },
    "Record a run": {
        "Which profiler for which question": "profilers.md",
        "Collecting a run": "collecting.md",
        "Collecting on a cluster": "collecting-slurm.md",
        "A run directory": "run-directory.md",
        "The workload card": "workload-card.md",
    },
    "Look and compare": {
        "Commands": "cli.md",
        "Reading a report": "reports.md",
        "Findings": "findings.md",
        "Comparing runs": "comparing.md",
        "Serving sweeps": "sweeps.md",
        "A timeline of all ranks": "timeline.md",
        "Diagnoses": "diagnoses.md",
        "A job that hangs": "hang.md",
        "What would it be worth?": "what-if.md",
        "Predictions": "predict.md",
        "Search": "search.md",
        "Simulating with ASTRA-sim": "astra-sim.md",
        "Many ranks, many machines": "many-machines.md",
        "Python and notebooks": "python.md",
        "Where did my step go?": "notebooks/where-did-my-step-go.md",
        "Two runs side by side": "notebooks/two-runs-side-by-side.md",
        "Agents, dashboards and trackers": "integrations.md",
    },
    "Publish": {
        "Publishing a run": "publishing.md",
        "The leaderboard": "leaderboard.md",
        "Rows that others reported": "importing.md",
        "A board without a server": "federation.md",
    },
    "What numbers mean": {
        "Definitions and decisions": "definitions-decisions.md",
        "Overlap compared with HolisticTraceAnalysis": "hta-overlap.md",
    },
    "How it is built": {"Architecture": "architecture.md"},
    "Speed, limits and security": {
        "Speed and memory": "benchmarks.md",
        "Damage and limits": "robustness.md",
        "Threat model": "threat-model.md",
    },
}
GENERATED = {"Command reference": "cli-reference.md", "Tables": "tables.md", "Device catalog": "devices.md"}
REFERENCE = {"File formats": "file-formats.md"}
PROJECT = {"Contributing": "contributing.md", "Changelog": "changelog.md"}
STYLE = {"Plain English": "style.md"}
ABOUT_TABLES = (
    "Traces are read into these tables: `ccl-bench tables RUN -o DIR` writes them, and "
    "`ccl_bench.open(RUN).table(NAME)` returns one. Tables of single traces also have `trace`, `rank` and "
    "`iteration` in front, see [Python and notebooks](python.md)."
)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def metric_page(metric: Metric, names: dict[str, str]) -> str:
    """Return the page of one metric, generated from its declaration and docstring."""
    aliases = sorted(alias for alias, name in names.items() if name == metric.name)
    facts = [
        ("unit", f"{metric.unit}, {DIRECTION[metric.better]}"),
        ("computed from", ", ".join(f"`{need}`" for need in metric.needs)),
        ("also called", ", ".join(f"`{alias}`" for alias in aliases) or "-"),
        ("revision of the definition", str(metric.revision)),
    ]
    if metric.variant_of:
        facts.append(
            ("the same as", f"[`{metric.variant_of}`]({metric.variant_of}.md) times {metric.scale:g}")
        )
    rests = f"## Inputs and assumptions\n\n{assumptions_table(tables_behind(metric.needs))}"
    return f"# `{metric.name}`\n\n{table(('', ''), facts)}\n{sections(metric.manual)}\n{rests}"


def assumptions_table(behind: Collection[str]) -> str:
    """Return what is assumed in the named inputs, where, and what watches it."""
    rows = [
        (
            ", ".join(f"`{name}`" for name in found.made_in if name in behind),
            found.assumes,
            watched_by(found),
            found.refused or "-",
        )
        for found in assumed_in(behind)
    ]
    return table(("made in", "assumption", "checked by", "no number where"), rows)


def watched_by(assumption: Assumption) -> str:
    """Return the findings that watch an assumption, and what none of them shows."""
    codes = ", ".join(f"[`{code}`](../findings.md)" for code in assumption.guards)
    missed = f"not checked: {assumption.unwatched}" if assumption.unwatched else ""
    return "; ".join(filter(None, [codes, missed])) or "-"


def sections(manual: str) -> str:
    """Return a docstring as Markdown: `Formula:` and the like as headings, the formula as it stands."""
    out: list[str] = []
    section = ""
    for line in manual.splitlines():
        if line.endswith(":") and line[:-1].isalpha() and not line.startswith(" "):
            section = line[:-1]
            out += ["", f"## {section}", ""]
        else:
            out.append(line if section == "Formula" else line.removeprefix("    "))
    return "\n".join(out) + "\n"


def diagnosis_page(rule: Diagnosis) -> str:
    """Return the page of one diagnosis, generated from its docstring: its parts as headings."""
    manual = re.sub(r"^(\w[\w ]+):$", r"## \1\n", rule.manual, flags=re.MULTILINE)
    rests = f"## Inputs and assumptions\n\n{assumptions_table(inputs_behind(rule))}"
    return f"# `{rule.name}`\n\n{manual}\n\n{rests}"


def metrics_index(registry: Iterable[Metric]) -> str:
    """Return the list of metrics."""
    rows = [(f"[`{m.name}`]({m.name}.md)", m.unit, m.better, m.summary) for m in registry]
    return f"# Metrics\n\n{table(('metric', 'unit', 'better', 'what it is'), rows)}"


def tables_page() -> str:
    """Return every table with its columns."""
    text = f"# Tables\n\n{ABOUT_TABLES}\n\n## From traces\n\n"
    text += "\n".join(_table_section(found) for found in TABLES.values())
    text += "\n## Computed from other tables\n\n"
    return text + "\n".join(_table_section(found.table, found.needs) for found in DERIVED)


def _table_section(found: Table, needs: Sequence[str] = ()) -> str:
    columns = [
        (f"`{name}`", column.dtype, found.unit(name), column.doc) for name, column in found.columns.items()
    ]
    source = f"Computed from {', '.join(f'`{need}`' for need in needs)}.\n\n" if needs else ""
    shown = table(("column", "type", "unit", "meaning"), columns)
    return f"### `{found.name}`\n\n{found.doc}\n\n{source}{shown}"


def devices_page() -> str:
    """Return the catalog of devices."""
    rows = [_device_row(devices.device(name)) for name in devices.names()]
    head = ("device", "memory, GiB", "bf16, TFLOP/s", "fp8, TFLOP/s", "link, GB/s", "source")
    text = "Dense peaks. Where a figure has no public source, there is none here.\n\n"
    return f"# Device catalog\n\n{text}{table(head, rows)}"


def _device_row(device: Device) -> tuple[str, ...]:
    memory = f"{device.memory_bytes / 2**30:g}" if device.memory_bytes else "-"
    peaks = [f"{device.peaks[dtype] / 1e12:g}" if dtype in device.peaks else "-" for dtype in ("bf16", "fp8")]
    link = f"{device.link_bytes_per_s / 1e9:g}" if device.link_bytes_per_s else "-"
    return (device.name, memory, *peaks, link, device.source(next(iter(device.peaks))))


def reference_page() -> str:
    """Return the help of every command."""
    text = "# Command reference\n\nThe `--help` of every command.\n"
    for program in PROGRAMS:
        for command in (program, *subcommands(program)):
            text += f"\n## {command}\n\n```text\n{help_of(command)}```\n"
    return text


def settings(names: Sequence[str]) -> str:
    """Return the settings of the site."""
    pages: dict[str, object] = {part: list(found.items()) for part, found in WRITTEN.items()}
    pages["Diagnoses"] = [f"diagnoses/{name}.md" for name in diagnosis.load().names()]
    pages["Metrics"] = ["metrics/index.md", *(f"metrics/{name}.md" for name in names)]
    pages["Reference"] = list((REFERENCE | GENERATED).items())
    pages["Project"] = list((PROJECT | STYLE).items())
    nav = ", ".join(_toml(entry) for entry in pages.items())
    return f"""[project]
site_name = "ccl-bench {__version__}"
site_description = "Trace-based benchmark of LLM infrastructure"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = [{nav}]

[project.theme]
font = false
logo = "assets/logo.svg"
favicon = "assets/logo.svg"
"""


def _toml(entry: str | tuple[str, object]) -> str:
    """Return one entry of the navigation: a page, or a title with the page or the entries below it."""
    if isinstance(entry, str):
        return json.dumps(entry)
    title, below = entry
    listed = f"[{', '.join(_toml(each) for each in below)}]" if isinstance(below, list) else json.dumps(below)
    return f"{{{json.dumps(title)} = {listed}}}"


def draw_pictures(folder: Path) -> None:
    """Draw the charts of the example run, next to the pictures of commands."""
    shutil.copytree(HERE / "pictures", folder)
    for chart in report_page(collect_report_data(open_run(str(EXAMPLE)), jobs=1)).charts():
        (folder / f"{chart.key}.svg").write_bytes(image(chart, "svg"))


def generate(folder: Path) -> None:
    """Write the whole manual into `folder`, replacing its content."""
    registry = metrics.load()
    DERIVED.load()
    formats.load()
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "pages"
    (pages / "metrics").mkdir(parents=True)
    shutil.copytree(ROOT / "assets", pages / "assets")
    for page in HERE.glob("*.md"):
        text = page.read_text(encoding="utf-8").replace(".ipynb)", ".md)")
        (pages / page.name).write_text(text, encoding="utf-8")
    for title in PROJECT:
        text = (ROOT / f"{title.upper()}.md").read_text(encoding="utf-8").replace("](docs/", "](")
        for other in PROJECT:
            text = text.replace(f"({other.upper()}.md", f"({other.lower()}.md")
        (pages / f"{title.lower()}.md").write_text(text, encoding="utf-8")
    for metric in registry:
        text = metric_page(metric, registry.aliases())
        (pages / "metrics" / f"{metric.name}.md").write_text(text, encoding="utf-8")
    (pages / "notebooks").mkdir()
    for notebook in NOTEBOOKS:
        text = render(notebook, pages / "notebooks" / "drawn")
        (pages / "notebooks" / f"{notebook.stem}.md").write_text(text, encoding="utf-8")
    made = {
        "metrics/index.md": metrics_index(registry),
        "tables.md": tables_page(),
        "devices.md": devices_page(),
        "cli-reference.md": reference_page(),
        "result.schema.json": json.dumps(json_schema(), indent=2) + "\n",
        "report.schema.json": json.dumps(report_schema(), indent=2) + "\n",
        "comparison.schema.json": json.dumps(comparison_schema(), indent=2) + "\n",
    }
    for name, text in made.items():
        (pages / name).write_text(text, encoding="utf-8")
    rules = diagnosis.load()
    (pages / "diagnoses").mkdir()
    for rule in rules:
        (pages / "diagnoses" / f"{rule.name}.md").write_text(diagnosis_page(rule), encoding="utf-8")
    draw_pictures(pages / "pictures")
    (folder / "zensical.toml").write_text(settings(registry.names()), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/generate.py FOLDER")
    generate(Path(sys.argv[1]))
