"""Packages of other people: installed with pip, found by entry point, harmless when broken."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import EXAMPLE, invoke, ran

PLUGIN = Path(__file__).parent / "ccl-bench-example-plugin"

BROKEN = {
    "broken_metrics": ("ccl_bench.metrics", "raise ImportError('needs libfoo 2')\n"),
    "broken_tables": ("ccl_bench.tables", "1 / 0\n"),
    "broken_formats": ("ccl_bench.formats", "import no_such_module\n"),
}

CIRCLE = {
    "circle_tables": (
        "ccl_bench.tables",
        """from ccl_bench.analysis.derived import derived


@derived(step=("Int64", "number of the step"))
def egg(steps, hen):
    return hen


@derived(step=("Int64", "number of the step"))
def hen(egg):
    return egg


@derived(step=("Int64", "number of the step"))
def breakfast(egg, steps):
    return egg
""",
    ),
    "circle_metrics": (
        "ccl_bench.metrics",
        """from ccl_bench.metrics import Measurement, metric


@metric(unit="s", better="lower")
def hens(hen):
    "Hens."
    return Measurement(1.0)


@metric(unit="s", better="lower")
def breakfasts(breakfast, steps):
    "Breakfasts."
    return Measurement(1.0)


@metric(unit="calls", better="neither")
def steps_there(steps):
    "Steps."
    return Measurement(float(steps.height))
""",
    ),
}
"""Two tables that need each other, one that rests on them, and metrics of each."""


def _metric(name: str, body: str, needs: str = "steps") -> tuple[str, str]:
    return (
        "ccl_bench.metrics",
        f"""import sys
from ccl_bench.metrics import Measurement, metric

@metric(unit="s", better="lower")
def {name}({needs}):
    "It is faulty."
    {body}
""",
    )


def _table(name: str, body: str, across_ranks: bool) -> tuple[str, str]:
    return (
        "ccl_bench.tables",
        f"""import sys
from ccl_bench.analysis.derived import derived

@derived(across_ranks={across_ranks}, step=("Int64", "number of the step"))
def {name}(steps):
    {body}
""",
    )


def _format(name: str, **bodies: str) -> tuple[str, str]:
    returns = {
        "recognises": f"return head[:20].startswith(b'{name}')",
        "identity": "return Identity(rank=9)",
        "read": "return TraceContent({}, rank=9)",
        **bodies,
    }
    return (
        "ccl_bench.formats",
        f"""import sys
from ccl_bench import Format, Identity, TraceContent, register

def recognises(head):
    {returns["recognises"]}

def identity(head):
    {returns["identity"]}

def read(stream, file):
    {returns["read"]}

register(Format(
    name="{name}", profile="torch", revision=1, tables=frozenset({{"kernels"}}), recognises=recognises,
    identity=identity, read=read, suffixes=(".faulty",), recorder="nobody", advice="none",
))
""",
    )


IMPORTED = {
    "exits_as_metric": ("ccl_bench.metrics", "import sys; sys.exit(7)\n"),
    "exits_as_table": ("ccl_bench.tables", "import sys; sys.exit(7)\n"),
    "exits_as_format": ("ccl_bench.formats", "import sys; sys.exit(7)\n"),
    "raises_what_is_no_exception": ("ccl_bench.metrics", "raise BaseException('at all')\n"),
    "takes_a_name": _metric("coll_call_num", "return Measurement(7.0)"),
    "is_not_there": ("ccl_bench.metrics", ""),
    "asks_formats": _format("asks", recognises="sys.exit(7)"),
    "names_formats": _format("names", identity="return None"),
}
"""Each is named in a warning of every command that uses it."""

FAULTY = {
    "raises": ("raise ValueError('odd')", "ValueError: odd"),
    "exits": ("sys.exit(7)", "RuntimeError: SystemExit: 7"),
    "returns_nothing": ("return None", "TypeError: it returned NoneType"),
    "returns_a_number": ("return 7.0", "TypeError: it returned float"),
}
"""Bodies that are wrong for metrics and tables alike, and what is said of them."""

OF_METRICS = {
    "text": ("return Measurement('7')", "ValidationError: Expected `float`, got `str`"),
    "ranks": ("return Measurement(7.0, ranks=['a'])", "ValidationError"),
    "details": ("return Measurement(7.0, details={'a': object()})", "TypeError"),
    "findings": ("return Measurement(7.0, findings=['a'])", "TypeError: its findings hold str"),
}
OF_FORMATS = {
    "raises": ("raise ValueError('odd')", "ValueError: odd"),
    "exits": ("sys.exit(7)", "RuntimeError: SystemExit: 7"),
    "nothing": ("return None", "TypeError: read returned NoneType"),
    "columns": (
        "import polars; return TraceContent({'kernels': polars.DataFrame({'a': [1]})}, rank=9)",
        "TypeError: its table kernels has no column",
    ),
}
PRINTING = {
    "prints_as_module": ("ccl_bench.metrics", "print('noise')\n"),
    "prints_as_metric": _metric("noisy", "print('noise'); return Measurement(7.0)"),
    "prints_as_table": _table("noisy_table", "print('noise'); return steps.select('step')", False),
    "prints_as_metric_of_table": _metric(
        "of_noisy_table", "return Measurement(float(noisy_table.height))", "noisy_table"
    ),
}


def _faulty_packages() -> dict[str, tuple[str, str]]:
    packages = {**IMPORTED, **PRINTING}
    for name, (body, _) in {**FAULTY, **OF_METRICS}.items():
        packages[f"metric_{name}"] = _metric(f"m_{name}", body)
    for name, (body, _) in FAULTY.items():
        for kind, across_ranks in (("trace", False), ("run", True)):
            packages[f"table_{kind}_{name}"] = _table(f"t_{kind}_{name}", body, across_ranks)
            packages[f"metric_of_{kind}_{name}"] = _metric(
                f"m_{kind}_{name}", "return Measurement(7.0)", f"t_{kind}_{name}"
            )
    for name, (body, _) in OF_FORMATS.items():
        packages[f"format_{name}"] = _format(f"f_{name}", read=body)
    return packages


def _packages(folder: Path, modules: dict[str, tuple[str, str]]) -> str:
    """Return a folder that looks like one installed package for each module."""
    for name, (group, source) in modules.items():
        (folder / f"{name}.py").write_text(source)
        about = folder / f"{name}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}\n")
    return str(folder)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder into which pip has built and installed the example package."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed: pip install hatchling")
    target = tmp_path_factory.mktemp("site")
    offline = ["--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
    built = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", str(target), str(PLUGIN)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return str(target)


@pytest.fixture(scope="module")
def measured(installed: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what is measured of a run of two ranks in the format that the example package reads."""
    run = tmp_path_factory.mktemp("kernels")
    for rank, count in ((0, 2), (1, 4)):
        kernels = [["gemm", 10 * n, 10 * n + 5] for n in range(count)]
        document = {"kernel-list": 1, "rank": rank, "kernels": [*kernels, ["backwards", 9, 3]]}
        (run / f"kernels_{rank}.json").write_text(json.dumps(document))
    names = ("kernel_count", "gpu_busy", "backward_time", "throughput_tokens_sec")
    asked = [word for name in names for word in ("-m", name)]
    found = ran(["ccl-metrics", "--trace", str(run), *asked, "--format", "json"], PYTHONPATH=installed)
    assert (found.returncode, found.stderr.count("Traceback")) == (0, 0)
    return {result["metric"]: result for result in json.loads(found.stdout)}


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """Return a folder that looks like three installed packages, each failing when it is imported."""
    return _packages(tmp_path, BROKEN)


def test_a_metric_of_a_plug_in_is_listed_and_explained(installed: str) -> None:
    listed = ran("ccl-metrics --list-metrics", PYTHONPATH=installed)
    explained = ran("ccl-metrics --explain number_of_kernels", PYTHONPATH=installed)
    assert "kernel_count" in listed.stdout
    assert "Kernels that one rank runs in one step." in explained.stdout


def test_a_rule_of_a_plug_in_is_listed_and_asked(installed: str) -> None:
    listed = ran("ccl-bench diagnose --list", PYTHONPATH=installed)
    asked = ran(["ccl-bench", "diagnose", str(EXAMPLE), "--why"], PYTHONPATH=installed)
    assert "The kernels of the optimizer take long." in listed.stdout
    assert "no kernel is named after Adam" in asked.stdout


def test_without_the_package_nothing_of_it_is_known() -> None:
    assert "kernel_count" not in invoke("ccl-metrics --list-metrics").stdout


def test_a_plug_ins_metric_format_and_table_work_together(measured: dict[str, Any]) -> None:
    assert measured["kernel_count"]["value"] == (2 + 4) / 2


def test_a_finding_of_a_plug_ins_format_is_attached_to_the_number(measured: dict[str, Any]) -> None:
    codes = [finding["code"] for finding in measured["kernel_count"]["findings"]]
    assert codes.count("kernel-list-backwards") == 2


def test_the_metrics_of_this_package_work_on_a_plug_ins_format(measured: dict[str, Any]) -> None:
    rank_0, rank_1 = 100 * (5 + 5) / 15, 100 * (4 * 5) / 35
    assert measured["gpu_busy"]["value"] == pytest.approx((rank_0 + rank_1) / 2)


def test_a_plug_ins_format_brings_its_suffix_and_its_step_marker(installed: str, tmp_path: Path) -> None:
    for rank in range(2):
        kernels = [[f"gemm{rank}", 10 * n, 10 * n + 5] for n in range(6)]
        rounds = [["round 4", 0, 20], ["other", 20, 30], ["round 5", 30, 60]]
        document = {"kernel-list": 1, "kernels": kernels, "ranges": rounds}
        (tmp_path / f"kernels_{rank}.klist").write_text(json.dumps(document))
    inspected = ran(["ccl-bench", "inspect", "--format", "json", str(tmp_path)], PYTHONPATH=installed)
    traces = json.loads(inspected.stdout)["traces"]
    assert [(trace["rank"], trace["steps"]) for trace in traces] == [(0, [4, 5]), (1, [4, 5])]
    assert {trace["step_source"] for trace in traces} == {"range of the format"}
    counted = ran(["ccl-metrics", "--trace", str(tmp_path), "-m", "kernel_count"], PYTHONPATH=installed)
    assert float(counted.stdout) == (2 + 3) / 2


def test_a_plug_ins_format_advises_how_to_record_more(measured: dict[str, Any]) -> None:
    result = measured["backward_time"]
    assert (result["status"], result["fix"]) == ("not_measurable", "run the kernel lister with --everything")


def test_a_fact_that_no_recording_holds_is_not_asked_of_the_recorder(measured: dict[str, Any]) -> None:
    result = measured["throughput_tokens_sec"]
    assert result["reason"] == "the number of tokens in a step is unknown"
    assert result["fix"].startswith("write tokens_per_step")


def test_a_plug_ins_metric_says_why_it_has_no_value(installed: str) -> None:
    command = ["ccl-metrics", "--trace", str(EXAMPLE), "--metric", "kernel_count"]
    found = ran(command, PYTHONPATH=installed)
    assert (found.returncode, found.stdout) == (3, "")
    assert "no kernel ran in any step" in found.stderr


def test_a_broken_plug_in_is_a_warning_and_not_a_crash(broken: str) -> None:
    listed = ran("ccl-metrics --list-metrics", PYTHONPATH=broken)
    assert listed.returncode == 0
    assert "coll_call_num" in listed.stdout
    assert "plug-in broken_metrics (ccl_bench.metrics)" in listed.stderr
    assert "needs libfoo 2" in listed.stderr
    assert "plug-in broken_tables (ccl_bench.tables)" in listed.stderr
    assert "plug-in broken_formats (ccl_bench.formats)" in listed.stderr


def test_a_broken_plug_in_takes_no_number_away(broken: str) -> None:
    command = ["ccl-metrics", "--trace", str(EXAMPLE), "--metric", "coll_call_num"]
    found = ran(command, PYTHONPATH=broken)
    assert (found.returncode, float(found.stdout)) == (0, 16.0)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return the folder of a package for each fault, and a run with files of the faulty formats."""
    run = tmp_path_factory.mktemp("faulty") / "run"
    shutil.copytree(EXAMPLE, run)
    for name in ("names", *(f"f_{name}" for name in OF_FORMATS)):
        (run / f"{name}.faulty").write_text(name)
    packages = _packages(tmp_path_factory.mktemp("packages"), _faulty_packages())
    Path(packages, "is_not_there.py").unlink()
    return packages, run


def test_whatever_a_plug_in_does_everything_else_is_answered_and_it_is_named(
    faulty: tuple[str, Path],
) -> None:
    packages, run = faulty
    plain = json.loads(ran(f"ccl-metrics --trace {EXAMPLE} --all --format json").stdout)
    found = ran(f"ccl-metrics --trace {run} --all --format json", PYTHONPATH=packages)
    assert (found.returncode, found.stderr.count("Traceback")) == (0, 0), found.stderr
    results = {result["metric"]: result for result in json.loads(found.stdout)}
    values = {result["metric"]: result["value"] for result in plain}
    assert {name: results[name]["value"] for name in values} == values
    for name, (_, reason) in {**FAULTY, **OF_METRICS}.items():
        result = results[f"m_{name}"]
        assert (result["status"], result["fix"]) == (
            "failed",
            f"ask the author of the plug-in metric_{name}",
        ), name
        assert reason in result["reason"]
    for name, (_, reason) in FAULTY.items():
        assert results[f"m_run_{name}"]["reason"].startswith(reason)
        of_trace = results[f"m_trace_{name}"]
        assert of_trace["status"] == "not_measurable"
        failed = f"the table t_trace_{name} of the plug-in table_trace_{name} failed: {reason}"
        assert of_trace["reason"].startswith(failed)
    assert (results["noisy"]["value"], results["of_noisy_table"]["status"]) == (7.0, "ok")
    for name in IMPORTED:
        assert f"warning: plug-in {name}" in found.stderr


def test_a_faulty_format_costs_its_own_files_alone(faulty: tuple[str, Path]) -> None:
    packages, run = faulty
    found = ran(f"ccl-bench inspect {run} --format json", PYTHONPATH=packages)
    assert (found.returncode, found.stderr.count("Traceback")) == (0, 0), found.stderr
    issues = " ".join(issue["message"] for issue in json.loads(found.stdout)["issues"])
    for name, (_, reason) in OF_FORMATS.items():
        assert f"the format f_{name} of the plug-in format_{name} failed: {reason}" in issues


def test_what_a_plug_in_prints_spoils_no_answer(faulty: tuple[str, Path]) -> None:
    packages, run = faulty
    found = ran(f"ccl-metrics --trace {run} --metric coll_call_num", PYTHONPATH=packages)
    assert (found.returncode, float(found.stdout)) == (0, 16.0)
    assert "noise" in found.stderr


def test_an_unknown_metric_is_answered_with_the_plug_in_that_is_broken(broken: str) -> None:
    command = ["ccl-metrics", "--trace", str(EXAMPLE), "--metric", "kernel_count"]
    found = ran(command, PYTHONPATH=broken)
    assert found.returncode == 2
    assert "plug-in broken_metrics is broken: ImportError: needs libfoo 2" in found.stderr.splitlines()[0]


def test_a_metric_whose_table_nobody_provides_says_so(installed: str, tmp_path: Path) -> None:
    table = tmp_path / "ccl_bench_example" / "kernels_in_steps.py"
    copied = Path(installed, "ccl_bench_example")
    table.parent.mkdir()
    for module in copied.glob("*.py"):
        (table.parent / module.name).write_text(module.read_text())
    table.write_text("raise RuntimeError('broken on purpose')\n")
    command = ["ccl-metrics", "--trace", str(EXAMPLE), "--metric", "kernel_count"]
    found = ran(command, PYTHONPATH=f"{tmp_path}:{installed}")
    assert found.returncode == 3
    assert "no package provides the table kernels_in_steps" in found.stderr


def test_tables_that_need_each_other_are_refused_and_take_no_other_number_along(tmp_path: Path) -> None:
    folder = _packages(tmp_path, CIRCLE)
    wanted = ["hens", "breakfasts", "steps_there", "coll_call_num"]
    asked = [word for name in wanted for word in ("--metric", name)]
    command = ["ccl-metrics", "--trace", str(EXAMPLE), "--format", "json", *asked]
    found = ran(command, PYTHONPATH=folder)
    assert "Traceback" not in found.stderr
    results = {result["metric"]: result for result in json.loads(found.stdout)}
    status = {name: result["status"] for name, result in results.items()}
    assert status == dict(zip(wanted, ["not_measurable", "not_measurable", "ok", "ok"], strict=True))
    assert results["coll_call_num"]["value"] == 16
    for name in ("hens", "breakfasts"):
        assert "tables depend on each other: egg → hen → egg" in results[name]["reason"]
