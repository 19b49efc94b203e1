"""Submitting the seven workloads to a real Slurm with Perlmutter's flags, and what is said of a refusal."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slurm_site import ROOT

if TYPE_CHECKING:
    import subprocess

    from slurm_site import Site

NAMES = sorted(path.stem for path in (ROOT / "workloads").glob("*.toml"))
TP = "llama3.1-8b-torchtitan-tp-perlmutter-16"
PP = "llama3.1-8b-torchtitan-pp-perlmutter-16"
DP = "deepseek-v2-lite-torchtitan-dp+tp-perlmutter-16"
TWO_NODES = "qwen3-32b-torchtitan-3d-perlmutter-16"


def _submitted(site: Site, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {"CLUSTER": "perlmutter", "ACCOUNT": "m1234", **environment}
    return site.ran("perlmutter/submit_all.sh", *words, **settings)


def test_slurm_takes_each_of_the_seven_jobs_with_perlmutters_flags(site: Site) -> None:
    assert len(NAMES) == 7
    for name in NAMES:
        folder = site.root / "trace_collection" / name
        done = site.ran("sbatch", "--test-only", "-A", "m1234", "run.sbatch", folder=folder)
        assert done.returncode == 0, done.stderr
        nodes = 2 if name.startswith("qwen3") else 1
        assert f"using {128 * nodes} processors on nodes {'n[1-2]' if nodes == 2 else 'n1'}" in done.stderr


def test_all_are_submitted_by_one_command(site: Site) -> None:
    done = _submitted(site, "--test-only")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^([\w.+-]+): sbatch: Job \d+ to start", done.stdout, flags=re.MULTILINE) == NAMES


def test_named_ones_are_submitted_with_further_options_of_sbatch(site: Site) -> None:
    done = _submitted(site, TP, "--hold", "--time=7")
    assert done.returncode == 0, done.stderr
    job = re.fullmatch(rf"{re.escape(TP)}: Submitted batch job (\d+)\n", done.stdout)[1]
    shown = site.ran("scontrol", "show", "job", job).stdout
    site.ran("scancel", job)
    for said in (
        "Account=m1234",
        "TimeLimit=00:07:00",
        "Features=gpu&hbm40g",
        "TresPerNode=gres:gpu:4",
        "Requeue=0",
    ):
        assert said in shown


def test_a_folder_that_a_user_made_is_submitted_like_the_seven(site: Site) -> None:
    name, collection = "my llama+1", site.root / "trace_collection"
    made = site.ran("ccl-bench", "new", name, "--from", TP, "--output", str(collection))
    assert made.returncode == 0, made.stderr
    try:
        done = _submitted(site, name, "--hold")
        assert done.returncode == 0, done.stderr
        job = done.stdout.split()[-1]
        reported = site.ran("perlmutter/status.sh", name).stdout
        site.ran("scancel", job)
        assert reported == f"{name}: job {job} PENDING (JobHeldUser); traces: 0\n"
        alone = site.scratch / name
        site.ran("ccl-bench", "new", name, "--from", TP, "--output", str(site.scratch))
        taken = site.ran("sbatch", "--test-only", "--account=m1234", "run.sbatch", folder=alone)
        assert taken.returncode == 0, taken.stderr
        refused = site.ran("./run.sh", folder=alone)
        assert refused.returncode == 4
        assert "set CCL_BENCH_ROOT to a checkout of ccl-bench" in refused.stderr
        found = site.ran("./run.sh", folder=alone, CLUSTER="perlmutter", CCL_BENCH_ROOT=str(site.root))
        assert "NERSC_ALLOCATION is not set" in found.stderr
    finally:
        shutil.rmtree(collection / name)


def test_without_an_allocation_nothing_is_submitted(site: Site) -> None:
    expected = (
        "ccl-bench: NERSC_ALLOCATION is not set, and perlmutter charges every job to an allocation\n"
        "  next: export NERSC_ALLOCATION=m1234 (yours), or set it in "
        f"{site.root}/perlmutter/common.sh\n"
    )
    alone = site.ran("./run.sh", folder=site.root / "trace_collection" / TP, CLUSTER="perlmutter")
    for done in (_submitted(site, ACCOUNT=""), alone):
        assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


SET = 'export NERSC_ALLOCATION="m1234"  # Replace with your actual allocation'


@pytest.mark.parametrize(
    ("environment", "charged"),
    [
        ({}, "m1234"),
        ({"NERSC_ALLOCATION": "m5"}, "m5"),
        ({"NERSC_ALLOCATION": "m5", "ACCOUNT": "m6"}, "m6"),
        ({"SBATCH_ACCOUNT": "m7"}, "m1234"),
    ],
)
def test_an_allocation_that_is_set_in_common_sh_is_charged_unless_another_is_named(
    site: Site, held: None, environment: dict[str, str], charged: str
) -> None:
    common = site.root / "perlmutter" / "common.sh"
    text = common.read_text()
    common.write_text(re.sub(r"^export NERSC_ALLOCATION=.*$", SET, text, flags=re.MULTILINE))
    try:
        done = _submitted(site, TP, **{"ACCOUNT": "", **environment})
    finally:
        common.write_text(text)
    assert done.returncode == 0, done.stderr
    assert f"Account={charged} " in site.ran("scontrol", "show", "job", done.stdout.split()[-1]).stdout


def test_a_job_of_plain_sbatch_charges_the_allocation_of_common_sh(site: Site) -> None:
    common = site.root / "perlmutter" / "common.sh"
    text = common.read_text()
    common.write_text(re.sub(r"^export NERSC_ALLOCATION=.*$", SET, text, flags=re.MULTILINE))
    script = f"trace_collection/{TP}/run.sbatch"
    try:
        done = site.ran("sbatch", "--wait", "--time=7", script, folder=site.root, CLUSTER="perlmutter")
    finally:
        common.write_text(text)
    first = int(re.findall(r"\d+", done.stdout)[0])
    said = (site.root / f"{TP}-{first}.out").read_text()
    [second] = re.findall(r"Submitted batch job (\d+)", said)
    shown = site.ran("scontrol", "show", "job", second).stdout
    site.ran("scancel", second)
    assert "charged to no allocation, so it ends and submits itself again with m1234" in said
    assert "Account=m1234 " in shown
    assert "TimeLimit=00:07:00" in shown


REFUSED = {
    "--constraint=gpu&hbm160g": ("Invalid feature specification", "sinfo --format"),
    "--gpus-per-node=8": ("Requested node configuration is not available", "sinfo --format"),
    "--nodes=3": ("Requested node configuration is not available", "sinfo --format"),
    "--partition=debug": ("Invalid partition name", "sinfo --summarize"),
}


@pytest.mark.parametrize("option", REFUSED)
def test_a_refusal_is_explained_with_the_next_command(site: Site, option: str) -> None:
    cause, command = REFUSED[option]
    done = _submitted(site, TP, "--test-only", option)
    assert (done.returncode, done.stdout) == (1, "")
    first, last = done.stderr.splitlines()
    assert first.startswith(f"ccl-bench: Slurm refused {TP}: ")
    assert cause in first
    assert last.startswith("  next: ")
    assert command in last


def test_what_cannot_be_submitted_keeps_back_no_other(site: Site) -> None:
    done = _submitted(site, TP, "mine", PP, "--test-only")
    assert done.returncode == 2
    assert re.findall(r"^([\w.+-]+): sbatch: Job \d+ to start", done.stdout, flags=re.MULTILINE) == [TP, PP]
    assert "trace_collection/mine has no run.sbatch" in done.stderr
    what, following = done.stderr.splitlines()[-2:]
    assert what == "ccl-bench: 1 of 3 workloads were not submitted, for the causes above: mine"
    assert following.endswith("submit_all.sh mine")


def test_a_persons_folder_beside_the_workloads_is_neither_submitted_nor_in_the_way(site: Site) -> None:
    folder = site.root / "trace_collection" / "my-model-vllm-group-4"
    shutil.copytree(site.root / "trace_collection" / TP, folder)
    try:
        done = _submitted(site, "--test-only")
        reported = site.ran("perlmutter/status.sh")
    finally:
        shutil.rmtree(folder)
    assert (done.returncode, reported.returncode) == (0, 0), done.stderr + reported.stderr
    assert re.findall(r"^([\w.+-]+): sbatch: Job \d+ to start", done.stdout, flags=re.MULTILINE) == NAMES
    assert [line.partition(":")[0] for line in reported.stdout.splitlines()] == NAMES


def test_the_state_of_each_job_is_reported(site: Site) -> None:
    held = _submitted(site, TP, "--hold").stdout.split()[-1]
    failed = site.submitted(PP, sbatch=("--nodes=2",))
    failed.ended()
    reported = site.ran("perlmutter/status.sh", PP, TP, DP)
    assert reported.returncode == 0, reported.stderr
    assert reported.stdout == (
        f"{PP}: job {failed.number} FAILED; traces: 0\n"
        "    ccl-bench: the allocation has 2 nodes, but this workload needs 1\n"
        f"{TP}: job {held} PENDING (JobHeldUser); traces: 0\n"
        f"{DP}: not submitted; traces: 0\n"
    )
    site.ran("scancel", held)
    assert site.cluster.ended(int(held)) == "CANCELLED"


def test_a_node_that_is_down_is_the_reason_to_wait(site: Site) -> None:
    site.ran("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=a test")
    try:
        job = _submitted(site, TWO_NODES).stdout.split()[-1]
        reported = site.ran("perlmutter/status.sh", TWO_NODES).stdout
        site.ran("scancel", job)
    finally:
        site.ran("scontrol", "update", "NodeName=n2", "State=RESUME")
    assert reported.startswith(f"{TWO_NODES}: job {job} PENDING (ReqNodeNotAvail")


def test_a_generic_cluster_is_asked_for_no_constraint(site: Site) -> None:
    done = _submitted(site, TP, "--hold", CLUSTER="generic", ACCOUNT="")
    assert done.returncode == 0, done.stderr
    job = done.stdout.split()[-1]
    shown = site.ran("scontrol", "show", "job", job).stdout
    site.ran("scancel", job)
    assert re.search(r"Features=(?:\(null\))?\s", shown)
    assert "TresPerNode=gres:gpu:4" in shown


def test_a_job_submitted_from_another_folder_says_where_to_submit_it(site: Site) -> None:
    folder = site.root / "trace_collection" / TP
    done = site.ran(
        "sbatch",
        "--parsable",
        "--output",
        str(site.scratch / "%j.out"),
        str(folder / "run.sbatch"),
        folder=site.scratch,
    )
    job = int(done.stdout)
    assert site.cluster.ended(job) == "FAILED"
    assert (site.scratch / f"{job}.out").read_text() == (
        f"run.sbatch: no run.sh in {site.scratch}: submit from its folder or that of ccl-bench "
        "(cd FOLDER && sbatch run.sbatch)\n"
    )


def test_an_allocation_of_another_size_is_refused_and_the_folder_of_an_earlier_run_stays(site: Site) -> None:
    earlier = site.scratch / "ccl-bench-traces" / TP
    (earlier / "profile_trace").mkdir(parents=True)
    try:
        job = site.submitted(TP, sbatch=("--nodes=2",))
        assert job.ended() == "FAILED"
    finally:
        shutil.rmtree(earlier)
    assert "the allocation has 2 nodes, but this workload needs 1" in job.text
    assert "  next: cd /" in job.text
    assert f"{earlier} is no link to a run and stays as it is; this run is in {job.run}" in job.text


def test_run_sh_outside_of_an_allocation_submits_the_job_with_the_settings_it_was_given(
    site: Site, held: None
) -> None:
    folder = site.root / "trace_collection" / TP
    given = {"CLUSTER": "perlmutter", "NERSC_ALLOCATION": "m1234"}
    done = site.ran("./run.sh", "--training.steps", "40", folder=folder, **given)
    assert done.returncode == 0, done.stderr
    job = re.fullmatch(rf"{re.escape(TP)}: Submitted batch job (\d+)\n", done.stdout)[1]
    shown = site.ran("scontrol", "show", "job", job).stdout
    assert "Account=m1234 " in shown
    assert f"Command={folder}/run.sbatch --training.steps 40\n" in shown


SHORT_NAMES = {
    "llama3_8b_tp": TP,
    "llama3_8b_pp": PP,
    "deepseek_v2_lite_dp_tp": DP,
    "deepseek_v2_lite_dp_pp": "deepseek-v2-lite-torchtitan-dp+pp-perlmutter-16",
    "qwen3_32b_3d": TWO_NODES,
    "qwen3_32b_dp_tp": "qwen3-32b-torchtitan-dp+tp-perlmutter-16",
    "qwen3_32b_dp_pp": "qwen3-32b-torchtitan-dp+pp-perlmutter-16",
}


def test_each_workload_has_a_script_of_a_short_name_beside_the_shared_ones(site: Site, held: None) -> None:
    scripts = {path.name: path.resolve().parent.name for path in (site.root / "perlmutter").glob("*.sbatch")}
    assert scripts == {f"run_{short}.sbatch": name for short, name in SHORT_NAMES.items()}
    for script, name in scripts.items():
        job = site.ran("sbatch", "--parsable", "--account=m1234", f"perlmutter/{script}").stdout.strip()
        assert f" JobName={name}\n" in site.ran("scontrol", "show", "job", job).stdout


@pytest.mark.parametrize("submitted_from", [".", "perlmutter"])
def test_a_job_finds_its_workload_from_the_checkout_and_from_its_scripts(
    site: Site, submitted_from: str
) -> None:
    folder = site.root / submitted_from
    script = site.root / "perlmutter" / "run_llama3_8b_pp.sbatch"
    done = site.ran("sbatch", "--parsable", "--nodes=2", str(script), folder=folder)
    job = int(done.stdout)
    assert site.cluster.ended(job) == "FAILED"
    printed = (folder / f"{PP}-{job}.out").read_text()
    run = re.match(r"ccl-bench: the output continues in (.*)/logs/slurm-\d+\.out\n", printed)[1]
    said = (Path(run) / f"{PP}.log").read_text()
    assert "the allocation has 2 nodes, but this workload needs 1" in said
