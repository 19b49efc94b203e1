"""Named baselines: the results, card and metadata of a run, in a folder for a repository.

Each is a folder with `results.json` and the card and metadata behind the results, without traces. A
comparison refers to it as `baseline:NAME`.
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
"""Stored or published results of a run, without its traces."""

FOLDER_VARIABLE = "CCL_BENCH_BASELINES"
_DEFAULT_FOLDER = ".ccl-bench/baselines"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KEPT_SUFFIXES = {".json", ".yaml", ".yml", ".toml"}


def baselines_folder() -> Path:
    """Return the folder of all baselines: from the environment variable, else in the working directory."""
    return Path(os.environ.get(FOLDER_VARIABLE) or _DEFAULT_FOLDER)


def baseline_names() -> list[str]:
    """Return the names of the baselines, in order."""
    return sorted(path.parent.name for path in baselines_folder().glob(f"*/{RESULTS}"))


def baseline_path(name: str) -> Path:
    """Return the folder of an existing baseline."""
    path = _path(name)
    if not (path / RESULTS).is_file():
        names = baseline_names()
        listed = f"known: {', '.join(names)}" if names else "make one: ccl-bench baseline set NAME RUN"
        fix = did_you_mean(name, names) or listed
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
    """Raise UsageError for an invalid or existing name."""
    path = _path(name)
    if not path.exists():
        return
    if not force:
        raise UsageError(f"the baseline {name} already exists", fix="give --force to replace it")
    _refuse_other_files(path)


def set_baseline(name: str, run: Run, results: Iterable[Result]) -> Path:
    """Store the results of a run with its card and metadata, and return the folder."""
    result_list = [*results]
    if all(result.value is None for result in result_list):
        fix = f"see what is missing: ccl-bench inspect {run.path}"
        raise NotMeasurable(
            "no metric can be measured, so it cannot be a baseline", where=str(run.path), fix=fix
        )
    target = _path(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as place:
        new_folder = Path(place) / name
        new_folder.mkdir()
        (new_folder / RESULTS).write_bytes(to_json(result_list) + b"\n")
        for file in run.documents.origins_of("facts"):
            (new_folder / file.name).write_bytes(file.read_bytes())
        if target.exists():
            shutil.rmtree(target)
        new_folder.rename(target)
    return target


def remove_baseline(name: str) -> None:
    """Remove a baseline."""
    path = baseline_path(name)
    _refuse_other_files(path)
    shutil.rmtree(path)


def _path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid name of a baseline",
            fix="use letters and digits, and after the first character also . _ - such "
            "as main or release-2.1",
        )
    return baselines_folder() / name


def _refuse_other_files(path: Path) -> None:
    """Raise UsageError if a folder holds other files than a baseline, so that it is not deleted."""
    others = [each.name for each in path.iterdir() if each.suffix not in _KEPT_SUFFIXES or each.is_dir()]
    if others or path.is_symlink():
        what = f"holds {', '.join(sorted(others)[:3])}" if others else "is a link"
        raise UsageError(f"{what}, so it is not only a baseline", where=str(path), fix="remove it by hand")
