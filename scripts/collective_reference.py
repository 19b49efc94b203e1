"""Make src/ccl_bench/catalog/collective_reference.parquet from a folder of aiconfigurator's tables.

    python scripts/collective_reference.py FOLDER

The folder holds <system>/<library>/<version>/*.parquet, as the repository that collective_reference.toml
names does. What is changed on the way stands in that file too.
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl

TARGET = Path(__file__).resolve().parents[1] / "src/ccl_bench/catalog/collective_reference.parquet"

BYTES = {"half": 2, "bfloat16": 2, "int8": 1}
"""Element type of a table → bytes of an element, which `message_size` counts."""
LIBRARIES = {"NCCL": "nccl", "oneCCL": "oneccl", "TRTLLM": "trtllm", "vLLM": "vllm", "SGLang": "sglang"}
"""How `kernel_source` begins → library."""
COLLECTIVES = {"alltoall": "all_to_all"}
KEY = ["system", "library", "version", "collective", "dtype", "kind", "group_size", "size_bytes"]


def rows(file: Path) -> pl.DataFrame:
    """Return the rows of one table, with the columns of the reference."""
    system, _, folder_version, _ = file.parts[-4:]
    table = pl.read_parquet(file)
    source = pl.col("kernel_source").str.split("_").list.first()
    dtype = pl.col("nccl_dtype" if "nccl_dtype" in table.columns else "allreduce_dtype")
    # A development build has no version of its own: that of the folder is the release before it.
    version = pl.col("version") if "version" in table.columns else pl.lit(folder_version)
    release = pl.when(version.str.contains(".dev", literal=True)).then(pl.lit(folder_version))
    kind = pl.col("kernel_source").str.extract("_(eager|graph)$").fill_null("")
    return table.select(
        system=pl.lit(system),
        library=source.replace_strict(LIBRARIES),
        version=release.otherwise(version).cast(pl.String),
        collective=pl.col("op_name").replace(COLLECTIVES).cast(pl.String),
        dtype=dtype.cast(pl.String),
        kind=kind.cast(pl.String),
        group_size=pl.col("num_gpus").cast(pl.Int16),
        size_bytes=pl.col("message_size") * dtype.replace_strict(BYTES, return_dtype=pl.Int64),
        time_s=pl.col("latency") / 1e3,
    )


def reference(folder: Path) -> pl.DataFrame:
    """Return all tables of a folder as one: a measurement once, several of the same by their median."""
    tables = [rows(file) for file in sorted(folder.glob("*/*/*/*.parquet"))]
    distinct = pl.concat(tables).unique()
    medians = distinct.group_by(KEY).agg(pl.col("time_s").median())
    return medians.sort(KEY).with_columns(
        pl.col("system", "library", "version", "collective", "dtype", "kind").cast(pl.Categorical)
    )


if __name__ == "__main__":
    reference(Path(sys.argv[1])).write_parquet(
        TARGET, compression="zstd", compression_level=22, statistics=False
    )
    print(f"{TARGET.name}: {TARGET.stat().st_size} bytes")
