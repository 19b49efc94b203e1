"""Make an example run of a recorded one: one packed trace a rank at the top, and no name of a machine.

tidy.py RECORDED EXAMPLE
"""

import gzip
import json
import re
import shutil
import sys
from pathlib import Path

SMALL = ("run_metadata.json", "step_times_per_rank.json", "training_metrics.json", "workload_card.yaml")


def main() -> None:
    """Copy the small files, and pack the traces."""
    recorded, example = map(Path, sys.argv[1:])
    example.mkdir(parents=True, exist_ok=True)
    for name in SMALL:
        shutil.copyfile(recorded / name, example / name)
    metadata = json.loads((example / SMALL[0]).read_text())
    for process in metadata["recording"]["processes"]:
        process |= {"host": "localhost", "pid": 0}
    (example / SMALL[0]).write_text(json.dumps(metadata, indent=2) + "\n")
    for trace in recorded.glob("profile_trace/*/rank*_trace.json"):
        rank = trace.name.removeprefix("rank").removesuffix("_trace.json")
        pack(trace, example / f"kineto_trace_{rank}.json.gz")


def pack(trace: Path, target: Path) -> None:
    """Pack a trace without the name of the host and the path that it was written to."""
    content = re.sub(rb'"host_name": "[^"]*"', b'"host_name": "localhost"', trace.read_bytes())
    content = re.sub(rb'"traceName": "[^"]*"', b'"traceName": "%s"' % target.stem.encode(), content)
    with target.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(content)


if __name__ == "__main__":
    main()
