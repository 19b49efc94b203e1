"""Names behind which is no plain file: devices, pipes, sockets, views of the kernel; and deep folders."""

from __future__ import annotations

import os
import socket
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.run import open_run
from ccl_bench.storage.files import read_text, walk
from ccl_bench.testing import Plan, write_run
from ccl_bench.trace.discovery import files_under

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = ("/dev/zero", "/dev/tty", "/proc/self/mem", "/proc/kmsg", "/sys/kernel", "pipe", "socket", "folder")


def put(kind: str, path: Path) -> Path:
    """Put something at a path that is no plain file."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            before = Path.cwd()
            os.chdir(path.parent)  # an address has at most 107 bytes
            listener.bind(path.name)
            os.chdir(before)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(kind)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["card", "config", "ceiling"])
def test_no_special_file_is_read_where_a_file_is_named(tmp_path: Path, kind: str, way: str) -> None:
    write_run(Plan(steps=1), tmp_path / "run")
    with pytest.raises(InputError):
        open_run(tmp_path / "run", **{way: put(kind, tmp_path / "named.yaml")})


@pytest.mark.parametrize("kind", KINDS)
def test_no_special_file_is_opened(tmp_path: Path, kind: str) -> None:
    path = put(kind, tmp_path / "x.json")
    with pytest.raises(OSError, match=r"not a file|Is a directory"):
        storage.open_raw(path)
    for read in (
        storage.open_file(path).__enter__,
        lambda: storage.read_head(path, 9),
        lambda: read_text(path),
    ):
        with pytest.raises(InputError):
            read()


NAMES = (
    *("workload_card.yaml", "run_metadata.json", "step_times.json", "moe_assignments.json", "nccl_tests.txt"),
    *("rank1_trace.json", "rank1_trace.json.gz", "report.sqlite", "a.nsys-rep", "a.xplane.pb", "a.pickle"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_read_without_the_special_files_in_it(tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run"
    write_run(Plan(steps=1), run)
    whole = open_run(run)
    for name in NAMES:
        if not (run / name).exists():
            put(kind, run / name)
    found = open_run(run)
    assert [trace.relative for trace in found.traces] == [trace.relative for trace in whole.traces]
    assert {finding.code for finding in found.findings} - {finding.code for finding in whole.findings} <= {
        "file-unreadable",
        "links-outside",
    }


@pytest.mark.parametrize("name", ["step_times.json", "rank1_trace.json"])
@pytest.mark.parametrize("kind", ["/dev/zero", "/dev/null", "/proc/kmsg", "/proc/self/environ"])
def test_a_link_to_what_is_no_file_is_reported_under_its_name(tmp_path: Path, kind: str, name: str) -> None:
    write_run(Plan(steps=1), tmp_path / "run")
    (tmp_path / "run" / name).unlink(missing_ok=True)
    put(kind, tmp_path / "run" / name)
    found = {(finding.code, finding.file) for finding in open_run(tmp_path / "run").findings}
    assert {("file-unreadable", name), ("links-outside", name)} <= found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("/proc")])
def test_a_map_of_ranks_that_is_a_view_of_the_kernel_is_refused(tmp_path: Path, kind: str) -> None:
    write_run(Plan(steps=1), tmp_path / "run")
    put(kind, tmp_path / "run" / "ranks.json")
    with pytest.raises(InputError, match="kernel"):
        open_run(tmp_path / "run")


def test_a_folder_that_leads_to_the_kernel_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "processes").symlink_to("/proc")
    (tmp_path / "a.json").touch()
    assert files_under(tmp_path)[0] == [tmp_path / "a.json"]


LEVELS = 1_100


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """Give a folder with more levels in it than Python's calls may nest, and a file in the last."""
    before = Path.cwd()
    (tmp_path / "run").mkdir()
    os.chdir(tmp_path / "run")
    for _ in range(LEVELS):
        Path("d").mkdir()
        os.chdir("d")
    Path("run_metadata.json").write_text('{"world_size": 3}', encoding="utf-8")
    os.chdir(before)
    yield tmp_path / "run"
    for folder, _, names in reversed([*walk(tmp_path / "run")]):  # deeper than pytest can remove
        for name in names:
            Path(folder, name).unlink()
        Path(folder).rmdir()


def test_deep_folders_are_walked_with_one_look_at_links_in_all(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = [], os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda path, **how: looks.append(path) or look(path, **how))
    (path,), findings = files_under(deep)
    assert len(path.relative_to(deep).parts) == LEVELS + 1
    assert len(looks) < 10
    assert findings == []


def test_a_file_in_the_deepest_folder_counts(deep: Path) -> None:
    world_size = open_run(deep).facts.world_size
    assert world_size is not None
    assert world_size.value == 3
    with pytest.raises(InputError, match="no output of nccl-tests"):
        open_run(deep, ceiling=deep)


def packed(content: bytes, name: bytes) -> bytes:
    """Return gzip with a name in its header."""
    deflate = zlib.compressobj(wbits=-15)
    head = b"\x1f\x8b\x08\x08" + bytes(5) + b"\xff" + name + b"\0"
    end = zlib.crc32(content).to_bytes(4, "little") + len(content).to_bytes(4, "little")
    return head + deflate.compress(content) + deflate.flush() + end


def test_a_gzip_header_of_half_a_megabyte_is_refused_and_a_smaller_one_is_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(Plan(steps=1), run)
    (plain,) = run.glob("rank0*.json")
    trace = run / "rank0_trace.json.gz"
    content = plain.read_bytes()
    plain.unlink()
    trace.write_bytes(packed(content, b"n" * (500 << 10)))
    assert [found.relative for found in open_run(run).traces] == [trace.name]
    trace.write_bytes(packed(content, b"n" * (520 << 10)))
    (finding,) = (found for found in open_run(run).findings if found.code == "file-unreadable")
    assert "gzip header of more than 512 KiB" in finding.message
