"""Workload folders from their definitions: what to train, on which devices, with which flags for Slurm.

A definition is a TOML file, such as `workloads/llama3.1-8b-torchtitan-tp-perlmutter-16.toml`. They share
`torchtitan.toml` and `machines.toml` beside this file, and the shell files that the generated scripts source.
"""

from ccl_bench.collect.workloads.definition import (
    Definition,
    Machine,
    folder_files,
    read_definition,
    write_folder,
)

__all__ = ["Definition", "Machine", "folder_files", "read_definition", "write_folder"]
