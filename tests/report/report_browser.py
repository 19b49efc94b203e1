"""Reports in a real browser: opened, with everything that they say or ask for."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page


@contextmanager
def opened(browser: Browser, file: Path, *, width: int, scheme: str) -> Iterator[tuple[Page, list[str]]]:
    """Open a page whose charts are drawn, with everything that it said or asked for."""
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    context.set_default_timeout(300_000)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    page.on(
        "request",
        lambda asked: None if asked.url == file.as_uri() else complaints.append(f"request: {asked.url[:60]}"),
    )
    page.goto(file.as_uri())
    page.wait_for_selector(":is([data-chart], [data-strip]):not([data-drawn])", state="detached")
    yield page, complaints
    context.close()


def said_by(page: Page, script: str) -> Any:
    """Return what a script comes to; the page's own policy forbids playwright's way of asking."""
    session = page.context.new_cdp_session(page)
    return session.send("Runtime.evaluate", {"expression": script, "returnByValue": True})["result"].get(
        "value"
    )
