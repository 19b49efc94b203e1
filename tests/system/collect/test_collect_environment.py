"""What a run ran on, asked of sources that may not be there."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from ccl_bench.collect.environment import machine
from ccl_bench.collect.environment.machine import Unavailable, capture_environment, program_output, query

# `nvidia-smi --query-gpu=... --format=csv,noheader,nounits` on a node with two A100.
TWO_A100 = """\
0, NVIDIA A100-SXM4-40GB, 40960, 550.163.01, 4, 16, 400.00, 1410, 1215, Enabled, Disabled, Enabled
1, NVIDIA A100-SXM4-40GB, 40960, 550.163.01, 4, 16, [N/A], 1410, 1215, Enabled, [N/A], Enabled
"""
NVLINK = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)
\t Link 0: 25 GB/s
\t Link 1: 25 GB/s
\t Link 2: <inactive>
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2)
\t Link 0: 25 GB/s
"""


def test_devices_are_listed_and_what_the_driver_does_not_know_is_left_out():
    first, second = machine.parse_devices(TWO_A100)
    assert first["name"] == "NVIDIA A100-SXM4-40GB"
    assert (first["memory_mib"], first["power_limit_w"], first["sm_clock_limit_mhz"]) == (40960, 400.0, 1410)
    assert "power_limit_w" not in second
    assert "mig_mode" not in second


def test_a_driver_that_answers_with_an_error_is_absent_and_not_a_device():
    with pytest.raises(Unavailable, match="no list of devices"):
        machine.parse_devices("No devices were found\n")


def test_links_of_devices_are_distinguished_and_inactive_ones_left_out():
    assert machine.parse_nvlinks(NVLINK) == {"0": [25.0, 25.0], "1": [25.0]}
    with pytest.raises(Unavailable, match="no active NVLink"):
        machine.parse_nvlinks("")


def test_rates_of_network_adapters_are_read_as_the_kernel_states_them(tmp_path):
    port = tmp_path / "infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
    (port / "link_layer").write_text("InfiniBand\n")
    for name, speed, state in (("hsn0", "200000", "up"), ("eth1", "1000", "down"), ("lo", "-1", "unknown")):
        folder = tmp_path / "net" / name
        folder.mkdir(parents=True)
        (folder / "speed").write_text(speed)
        (folder / "operstate").write_text(state)
    assert machine.infiniband_ports(tmp_path / "infiniband") == [
        {"name": "mlx5_0", "kind": "InfiniBand", "rate_gbps": 200.0}
    ]
    assert machine.network_interfaces(tmp_path / "net") == [
        {"name": "hsn0", "kind": "Ethernet", "rate_gbps": 200.0}
    ]


def test_only_variables_on_the_list_are_kept_and_never_a_secret():
    given = {
        "NCCL_SOCKET_IFNAME": "hsn0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "SLURM_NNODES": "2",
        "SLURM_JOB_USER": "ada",
        "CUDA_API_KEY": "x",
        "SLURM_JWT": "x",
        "NCCL_AUTH_TOKEN": "x",
        "TORCH_SECRET_PATH": "x",
        "HOME": "/home/ada",
        "https_proxy": "http://user:password@proxy",
    }
    assert set(machine.relevant_variables(given)) == {
        "NCCL_SOCKET_IFNAME",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "SLURM_NNODES",
    }
    assert "SLURM_NNODES" not in machine.communication_variables(given)


def test_a_source_that_is_not_there_says_why():
    assert query(lambda: program_output("no-such-program")) == {"absent": "no-such-program is not installed"}
    assert query(lambda: program_output("false"))["absent"].startswith("false ended with status 1")
    slow = query(lambda: program_output("sleep", "1000", timeout_s=0.1))
    assert slow["absent"].endswith("did not answer in 0.1 s")


def test_nothing_is_guessed_on_a_machine_without_any_of_the_programs(tmp_path):
    found = capture_environment(["train"], tmp_path, {"PATH": str(tmp_path)})
    assert found["software"] == {"absent": "python3 is not installed"}
    if not shutil.which("nvidia-smi"):
        assert found["devices"] == {"absent": "nvidia-smi is not installed"}
    assert found["host"]["cores"] >= 1


def test_versions_are_those_of_the_commands_own_interpreter(tmp_path, torch_installed):
    import os
    from importlib.metadata import version

    launcher = tmp_path / "launch"
    launcher.write_text(f"#!{sys.executable}\n")
    launcher.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert machine.find_interpreter(["srun", "-n", "2", "launch", "x.py"], environment) == sys.executable
    found = machine.describe_software(["launch"], tmp_path, environment)
    assert found["torch"]["version"] == version("torch")
    assert found["interpreter"] == sys.executable


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python3.12", "-m", "torch.distributed.run"], "python3.12"),
        (["numactl", "--membind=0", "/opt/env/bin/python", "x.py"], "/opt/env/bin/python"),
        (["no-such-launcher", "--python=python9", "x.py"], "python3"),
    ],
)
def test_the_interpreter_is_found_behind_launchers(command, expected):
    assert machine.find_interpreter(command, {"PATH": ""}) == expected


def test_the_state_of_a_checkout_is_kept(tmp_path):
    def git(*words):
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words],
            check=True,
            capture_output=True,
        )

    assert query(lambda: machine.describe_git(tmp_path)) == {
        "absent": "the working directory is not in a git checkout"
    }
    git("init", "-b", "main")
    (tmp_path / "train.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    clean = machine.describe_git(tmp_path)
    assert (clean["branch"], clean["is_clean"], len(clean["commit"])) == ("main", True, 40)
    (tmp_path / "train.py").write_text("2")
    assert machine.describe_git(tmp_path)["changed_files"] == 1


def test_absent_is_a_value_of_its_own():
    assert machine.is_unavailable({"absent": "why"})
    assert not machine.is_unavailable([])
