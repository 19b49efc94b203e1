"""Named baselines: the results of a run and what was stated of it, in a folder for a repository.

Each is a folder of its name with `results.json` and the card and metadata that the results rest on, without
traces. `baseline:NAME` stands for it in a comparison.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ccl_bench.base.errors import InputError, NotMeasurable, UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.result import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.result import Result
    from ccl_bench.run import Run

PREFIX = "baseline:"
RESULTS = "results.json"
"""Results of a run that are kept, or were published, without its traces."""

FOLDER_VARIABLE = "CCL_BENCH_BASELINES"
_DEFAULT_FOLDER = ".ccl-bench/baselines"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KEPT_SUFFIXES = {".json", ".yaml", ".yml", ".toml"}


def baselines_folder() -> Path:
    """Return the folder of all baselines: that of the variable, else one in the working directory."""
    return Path(os.environ.get(FOLDER_VARIABLE) or _DEFAULT_FOLDER)


def baseline_names() -> list[str]:
    """Return the names of the baselines, in order."""
    return sorted(path.parent.name for path in baselines_folder().glob(f"*/{RESULTS}"))


def baseline_path(name: str) -> Path:
    """Return the folder of an existing baseline."""
    path = _path(name)
    if not (path / RESULTS).is_file():
        known = baseline_names()
        listed = f"known: {', '.join(known)}" if known else "make one: ccl-bench baseline set NAME RUN"
        fix = did_you_mean(name, known) or listed
        raise InputError(f"there is no baseline {name}", where=str(baselines_folder()), fix=fix)
    return path


def read_baseline(name: str) -> list[Result]:
    """Return the results of a baseline."""
    path = baseline_path(name) / RESULTS
    try:
        return from_json(path.read_bytes())
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        fix = f"set it again: ccl-bench baseline set {name} RUN --force"
        raise InputError(f"holds no results: {error}", where=str(path), fix=fix) from error


def refuse_baseline(name: str, *, force: bool) -> None:
    """Raise UsageError for a name that no baseline can have, or that is taken."""
    path = _path(name)
    if not path.exists():
        return
    if not force:
        raise UsageError(f"the baseline {name} already exists", fix="give --force to replace it")
    _refuse_other_files(path)


def set_baseline(name: str, run: Run, results: Iterable[Result]) -> Path:
    """Keep the results of a run, and the files that state what it did; return the folder."""
    kept = [*results]
    if all(result.value is None for result in kept):
        fix = f"see what is missing: ccl-bench inspect {run.path}"
        raise NotMeasurable("nothing can be measured, so it is no baseline", where=str(run.path), fix=fix)
    target = _path(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as place:
        made = Path(place) / name
        made.mkdir()
        (made / RESULTS).write_bytes(to_json(kept) + b"\n")
        for file in run.stated.origins_of("facts"):
            (made / file.name).write_bytes(file.read_bytes())
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)
    return target


def remove_baseline(name: str) -> None:
    """Remove a baseline."""
    path = baseline_path(name)
    _refuse_other_files(path)
    shutil.rmtree(path)


def _path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a baseline",
            fix="use letters, digits, and after the first also . _ - such as main or release-2.1",
        )
    return baselines_folder() / name


def _refuse_other_files(path: Path) -> None:
    """Raise UsageError where a folder holds what no baseline does: it is not deleted."""
    others = [each.name for each in path.iterdir() if each.suffix not in _KEPT_SUFFIXES or each.is_dir()]
    if others or path.is_symlink():
        what = f"holds {', '.join(sorted(others)[:3])}" if others else "is a link"
        raise UsageError(f"{what}, so it is not only a baseline", where=str(path), fix="remove it by hand")
