"""Write the folders in `trace_collection/` from the definitions beside this file.

    python workloads/generate.py

A folder's own files that the definition does not make stay.
"""

from pathlib import Path

from ccl_bench.collect.workloads import read_definition, write_folder

HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    for path in sorted(HERE.glob("*.toml")):
        definition = read_definition(path)
        write_folder(definition, HERE.parent / "trace_collection" / definition.name, force=True)
