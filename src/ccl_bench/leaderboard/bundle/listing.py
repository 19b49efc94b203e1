"""What a parcel holds and tells, for people to look at before it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.comparison import unknown_fields
from ccl_bench.leaderboard.bundle.limits import RUN
from ccl_bench.leaderboard.store.bundle import CARD, PROVENANCE, REPORT, RESULTS
from ccl_bench.report.console import Group, Text, aligned, heading, indented
from ccl_bench.report.formatting import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from ccl_bench.leaderboard.bundle.parcel import Parcel

_WHAT = {
    CARD: "the card as written",
    PROVENANCE: "versions, environment, and the SHA-256 of every file of the run",
    REPORT: "the report as data",
    RESULTS: "every number with its details",
}


def listing(parcel: Parcel) -> Group:
    """Return the files of a parcel, and what they tell of people and machines."""
    rows = list(_rows(parcel))
    return Group(
        heading(f"{parcel.bundle.provenance.run} would be published as {parcel.id[:12]}"),
        indented(aligned(("file", "bytes", "what"), rows, right=(1,))),
        *_told(parcel),
        *_ranking(parcel),
    )


def _rows(parcel: Parcel) -> Iterator[tuple[str, str, str]]:
    for name in parcel.bundle.files:
        yield name, f"{(parcel.bundle.folder / name).stat().st_size:,}", _WHAT[name]
    formats = {trace.file: trace.format for trace in parcel.bundle.provenance.traces}
    for name, path in sorted(parcel.run_files.items()):
        yield f"{RUN}/{name}", f"{path.stat().st_size:,}", formats.get(name, "beside the traces")


def told_in_short(parcel: Parcel) -> Iterator[str]:
    """Yield a sentence for each kind of thing that a parcel tells of people and machines."""
    for what in dict.fromkeys(told.what for told in parcel.told):
        same = [told for told in parcel.told if told.what == what]
        example = same[0]
        yield f"{what} is told by {counted(len(same), 'file')}: {example.example} in {example.file}"


def _told(parcel: Parcel) -> list[RenderableType]:
    if not parcel.told:
        return [Text("It tells no host, user, address or home directory that is looked for.")]
    rows = [(told.file, f"{told.what}, {counted(told.count, 'time')}", told.example) for told in parcel.told]
    return [heading("What it tells"), indented(aligned(("file", "what", "such as"), rows))]


def _ranking(parcel: Parcel) -> list[RenderableType]:
    missing = unknown_fields(parcel.bundle.fields)
    if not missing:
        return [Text("The card says enough for it to be ranked.")]
    return [Text(f"It would be listed and not ranked: the card does not say {', '.join(missing)}.")]
