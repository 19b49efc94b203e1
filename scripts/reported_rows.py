#!/usr/bin/env python3
"""Pack rows that others published into the package, one Parquet file a source.

The files are silicon.csv of AIConfigurator and benchmark_data.json of CCL-Bench. `sources.toml` describes
both.
"""

import argparse
import sys
from pathlib import Path

from ccl_bench.leaderboard.reported.observations import write_reported
from ccl_bench.leaderboard.reported.reading import About, read_files

DATA = Path(__file__).resolve().parents[1] / "src" / "ccl_bench" / "leaderboard" / "reported" / "data"


def main() -> None:
    """Read the files and write one of each source."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    reported, mistakes = read_files(parser.parse_args().files, About())
    for mistake in mistakes:
        sys.stderr.write(f"left out: {mistake}\n")
    for each in reported:
        path = DATA / f"{each.source.name}.parquet"
        write_reported(path, each)
        sys.stdout.write(f"{path.name}  {each.rows.height:,} rows, {path.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
