"""Debian's Chromium without a window, for tests that look at pages."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

OFF = (
    # Pages of the window's own, made anew for each page that is opened; nobody sees a window here.
    "WebUIOmniboxAimPopup", "WebUIOmniboxPopup",
    # Those that Playwright turns off: Chromium obeys the last list only.
    "AimEnabled", "AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose", "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades", "LensOverlay",
    "MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints", "PaintHolding", "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
)  # fmt: skip

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--disable-features={','.join(OFF)}",
)
"""Switches with which Chromium runs as root and asks nobody for anything."""


def program() -> str:
    """Return where the browser is; skip without it, or without what drives it."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test")
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed: make services")
    return found


def launched(playwright: Playwright) -> Browser:
    """Return the browser, started."""
    return playwright.chromium.launch(executable_path=program(), args=list(QUIET))
