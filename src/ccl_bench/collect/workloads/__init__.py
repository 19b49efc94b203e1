"""Workload folders from their definitions: model, devices, and options for Slurm.

A definition is a TOML file, such as `workloads/llama3.1-8b-torchtitan-tp-perlmutter-16.toml`. They share
`torchtitan.toml` and `machines.toml` in this folder, and the shell files that the generated scripts source.
"""

from ccl_bench.collect.workloads.definition import (
    Machine,
    WorkloadDefinition,
    definition_files,
    definition_named,
    folder_files,
    read_definition,
    scripts_root,
    workload_card,
    write_folder,
)

__all__ = [
    "Machine",
    "WorkloadDefinition",
    "definition_files",
    "definition_named",
    "folder_files",
    "read_definition",
    "scripts_root",
    "workload_card",
    "write_folder",
]
