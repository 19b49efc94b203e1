"""The logo is one drawing: that of the pages, of the README, and as a picture."""

from __future__ import annotations

import struct

import vl_convert
from checkout import ROOT, SOURCE

from ccl_bench.report.render import html

DRAWN = (ROOT / "assets" / "logo.svg").read_text(encoding="utf-8")
PICTURE = (ROOT / "assets" / "logo.png").read_bytes()


def test_the_logo_of_the_readme_is_that_of_the_pages() -> None:
    packaged = SOURCE / "report" / "render" / "assets" / "logo.svg"
    assert packaged.read_text(encoding="utf-8") == DRAWN == html.logo(), "run make logo"


def test_the_picture_is_made_from_the_drawing() -> None:
    assert struct.unpack(">II", PICTURE[16:24]) == (1200, 256)  # four times the drawing's 300 x 64
    assert vl_convert.svg_to_png(DRAWN, scale=4) == PICTURE, "run make logo"


def test_the_mark_alone_is_the_square_at_the_left() -> None:
    import base64

    mark = base64.b64decode(html.icon().partition("base64,")[2]).decode()
    assert mark != DRAWN
    assert 'viewBox="0 0 64 64"' in mark


def test_requirements_install_this_checkout() -> None:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == ["."]
