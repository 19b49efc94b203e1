"""Archives that somebody may send: good ones, and those of people who mean harm."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ccl_bench.leaderboard.bundle.upload import Upload

CARD, RESULTS, PROVENANCE, REPORT = "workload_card.yaml", "results.json", "provenance.json", "report.json"

Files = dict[str, bytes]


def files_of(parcel: Upload) -> Files:
    """Return the files that leave the machine, by their names in an archive."""
    named = {name: parcel.bundle.folder / name for name in parcel.bundle.files}
    named |= {f"run/{name}": path for name, path in parcel.run_files.items()}
    return {name: path.read_bytes() for name, path in named.items()}


def archive(files: Mapping[str, bytes], *others: tarfile.TarInfo) -> bytes:
    """Return an archive of files, and of members that are no plain files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info in others:
            tar.addfile(info)
    return gzip.compress(raw.getvalue(), 1)


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """Return a member that is no plain file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def edited(files: Files, name: str, change: Callable[[Any], object]) -> Files:
    """Return files of which one, which is JSON, was changed."""
    content = json.loads(files[name])
    change(content)
    return {**files, name: json.dumps(content).encode()}


def with_results(files: Files, change: Callable[[list[Any]], object]) -> Files:
    """Return files whose results were changed, in the report likewise."""
    both = edited(files, RESULTS, change)
    return edited(both, REPORT, lambda report: change(report["results"]))


def another(files: Files, name: str) -> Files:
    """Return the bundle of another recording: every trace has another hash."""
    text = b"\n".join(files.values())
    digests = {trace["sha256"] for trace in json.loads(files[PROVENANCE])["traces"]}
    assert digests and all(digest.encode() in text for digest in digests)
    new = {digest: hashlib.sha256(f"{name} {digest}".encode()).hexdigest() for digest in digests}
    pattern = re.compile("|".join(digests).encode())
    return {
        file: pattern.sub(lambda found: new[found[0].decode()].encode(), content)
        for file, content in files.items()
    }


def value_of(files: Files, metric: str) -> float:
    """Return a number in the results."""
    (found,) = (result["value"] for result in json.loads(files[RESULTS]) if result["metric"] == metric)
    return found


def claiming(files: Files, metric: str, times: float) -> Files:
    """Return a bundle that claims another number."""

    def change(results: list[Any]) -> None:
        (found,) = (result for result in results if result["metric"] == metric)
        found["value"] *= times

    return with_results(files, change)
