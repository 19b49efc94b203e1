"""Where the example runs lie: in the installed package, or in the checkout that it is used from."""

from __future__ import annotations

from pathlib import Path

from ccl_bench.base.errors import InputError

_PACKAGE = Path(__file__).resolve().parent.parent
_PLACES = (_PACKAGE / "examples", _PACKAGE.parent.parent / "examples" / "runs")


def example_runs() -> dict[str, Path]:
    """Return the example runs by name; raise InputError where the package was installed without them."""
    for place in _PLACES:
        if place.is_dir():
            return {path.name: path for path in sorted(place.iterdir()) if path.is_dir()}
    fix = "install a wheel of ccl-bench, or use a checkout"
    raise InputError("the example runs are not installed", where=str(_PLACES[0]), fix=fix)
