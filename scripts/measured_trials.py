#!/usr/bin/env python3
"""Pack measured trials of other projects into src/ccl_bench/catalog/trials.parquet; trials.toml has sources.

The folder has vtrain_single_node.csv and vtrain_multi_node.csv of vTrain, and perlmutter-search/trials.csv.
"""

import argparse
from pathlib import Path

import polars as pl

from ccl_bench.predict.trials import FLAGS, NUMBERS, TEXTS, read_trials

DATA = Path(__file__).resolve().parents[1] / "src" / "ccl_bench" / "catalog" / "trials.parquet"

# What the tables leave out, by their paper (arXiv:2312.12391, section 6): A100 SXM of 80 GB, eight in a node.
_VTRAIN = {"framework": "megatron-lm", "gpu": "A100-SXM4-80GB", "gpus_per_node": 8.0}
SETS = {
    "vtrain-single-node": ("vtrain_single_node.csv", _VTRAIN),
    "vtrain-multi-node": ("vtrain_multi_node.csv", _VTRAIN),
    "perlmutter-search": ("perlmutter-search/trials.csv", {}),
}


def main() -> None:
    """Read the tables of a folder and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    tables = []
    for name, (file, values) in SETS.items():
        rows = read_trials(folder / file).rows.with_columns(
            pl.lit(value).alias(column) for column, value in values.items()
        )
        rows = rows.with_columns(pl.col("study").fill_null(name), set=pl.lit(name))
        tables.append(rows.select("set", *TEXTS, *NUMBERS, *FLAGS))
    pl.concat(tables).write_parquet(DATA, compression="zstd", compression_level=22)


if __name__ == "__main__":
    main()
