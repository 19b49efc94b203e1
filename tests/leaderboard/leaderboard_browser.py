"""A real browser in a thread of its own.

Playwright's synchronous interface keeps an event loop in the thread that started it, and there may be one
in each thread only: whatever else a test run starts does not meet this one.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import browsers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Locator, Page

T = TypeVar("T")


@dataclass
class Browsing:
    """A browser; `walk` runs a function with a page in it.

    A page that ended well serves the next walk, empty: opening one takes as long as two addresses.
    """

    _thread: ThreadPoolExecutor
    _browser: Browser
    _pages: dict[bool, Page] = field(default_factory=dict)
    """Pages without and with scripts."""
    _complaints: list[str] = field(default_factory=list)
    """What pages wrote to the console, and errors."""

    def walk(
        self, steps: Callable[[Page], T], *, width: int = 1400, scheme: str = "light", scripts: bool = True
    ) -> T:
        """Return what the steps return; a complaint of a page fails, and a request to anywhere else."""
        return self._thread.submit(self._walked, steps, width, scheme, scripts).result(timeout=300)

    def _walked(self, steps: Callable[[Page], T], width: int, scheme: Any, scripts: bool) -> T:
        page = self._pages.pop(scripts, None) or self._opened(scripts)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        self._complaints.clear()
        found = steps(page)
        assert not self._complaints, self._complaints
        page.context.clear_cookies()
        page.evaluate("localStorage.clear(), sessionStorage.clear()")
        page.goto("about:blank")
        self._pages[scripts] = page
        return found

    def _opened(self, scripts: bool) -> Page:
        context = self._browser.new_context(java_script_enabled=scripts)
        context.set_default_timeout(300_000)
        page = context.new_page()
        complain = self._complaints.append
        page.on("console", lambda message: complain(f"console: {message.text}"))
        page.on("pageerror", lambda error: complain(f"error: {error}"))
        page.on("dialog", lambda dialog: complain(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self._complaints.extend(_elsewhere(request.url, page.url)))
        return page


def _elsewhere(address: str, page: str) -> list[str]:
    """Return a complaint where an address is on no machine, or another than the page that asks for it."""
    asked, asking = urlsplit(address), urlsplit(page)
    is_here = asked.netloc == asking.netloc or page == "about:blank"
    return [] if is_here and asked.hostname in {None, "127.0.0.1"} else [f"{page} asks for {address}"]


def follow(link: Locator) -> None:
    """Click on what leads to another page, and return when that page is there.

    A click alone returns as soon as the browser has asked for the page.
    """
    with link.page.expect_navigation():
        link.click()


@contextlib.contextmanager
def browsing() -> Iterator[Browsing]:
    """Give Debian's Chromium without a window; skip without it."""
    browsers.program()
    from playwright.sync_api import sync_playwright

    with ThreadPoolExecutor(1) as thread:
        started = thread.submit(sync_playwright().start).result()
        browser = thread.submit(browsers.launched, started).result()
        try:
            yield Browsing(thread, browser)
        finally:
            thread.submit(browser.close).result()
            thread.submit(started.stop).result()
