"""The tables of serving benchmarks: what became of each request, and what the tool said of all of them."""

from __future__ import annotations

from ccl_bench.schema.table import declared as _table

_BENCHMARK = ("Int64", "number of the benchmark in its file, from 0")
_TOOL = ("String", "tool that drove the load, by the name of its format")

SERVING_TABLES = (
    _table(
        "requests",
        "One request of a serving benchmark, with the times that the client measured, unrounded.",
        benchmark=_BENCHMARK,
        tool=_TOOL,
        request=("String", "id as recorded, else its place in the file"),
        status=("String", "`ok`, `failed`, `cancelled` or `warmup`; only `ok` has times and tokens"),
        start_ns=("Int64", "when it was sent, ns; null where not recorded"),
        end_ns=("Int64", "when its last token came, ns; null where not recorded"),
        ttft_s=("Float64", "from sending it to its first token, s; null where it was not streamed"),
        latency_s=("Float64", "from sending it to its last token, s"),
        own_tpot_s=("Float64", "time per output token as the tool defines it, s"),
        input_tokens=("Int64", "tokens of the prompt"),
        output_tokens=("Int64", "tokens generated, the first included"),
        gaps_s=("List(Float64)", "times between consecutive chunks of output, s"),
        error=("String", "what went wrong, as recorded"),
    ),
    _table(
        "serving_statistics",
        "One number that the tool itself computed over all requests of a benchmark.",
        benchmark=_BENCHMARK,
        tool=_TOOL,
        quantity=(
            "String",
            "`ttft`, `tpot`, `itl`, `latency`, `own_tpot`, `duration`, `completed`, `input_tokens`, ...",
        ),
        statistic=("String", "`mean`, `p50`, ..., `std`; `total` where there is one number"),
        value=("Float64", "value, in s where it is a time"),
    ),
)
