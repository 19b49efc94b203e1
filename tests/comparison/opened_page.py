"""Open a page in Debian's Chromium and print as JSON what it drew and what it complained of.

    python opened_page.py FILE WIDTH SCHEME

A process of its own: playwright's synchronous interface can be started only once in each.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def opened(file: Path, width: int, scheme: str) -> dict[str, object]:
    """Return what happened when the page was opened."""
    complaints: list[str] = []
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", lambda asked: asked.url == file.as_uri() or complaints.append(asked.url[:80]))
        page.goto(file.as_uri())
        page.wait_for_selector("[data-chart]:not([data-drawn])", state="detached")
        shown = {
            "complaints": complaints,
            "charts": page.locator("[data-chart] svg").count(),
            "text": page.locator("body").inner_text(),
        }
        browser.close()
    return shown


if __name__ == "__main__":
    print(json.dumps(opened(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
