"""Candidates: every way to share a step among the devices of a job, at one batch and sequence length."""

from __future__ import annotations

from itertools import product

from ccl_bench.base.lazy_imports import pl

VARY = ("tp", "dp", "pp", "micro_batch", "recompute")
"""Settings that candidates differ in."""

_BATCH_LIMIT = 64
"""Largest micro batch: beyond it, activations of any model fill a device."""


def candidates(like: pl.DataFrame, *, vary: tuple[str, ...] = VARY) -> pl.DataFrame:
    """Return all configurations with the devices, the batch and the workload of the one row `like`.

    tp divides the heads and pp the layers, so that ranks have equal shares; dp · micro batch divides the
    global batch. Settings that are not in `vary` stay those of the row; ep and cp always do.
    """
    row = like.row(0, named=True)
    share = int(row["gpus"] // row["cp"])
    heads, layers, batch = (int(row[name]) for name in ("heads", "layers", "global_batch"))
    rows = []
    for tp, pp in product(_divisors(share), repeat=2):
        if share % (tp * pp) or heads % tp or layers % pp:
            continue
        dp = share // (tp * pp)
        if batch % dp or dp % int(row["ep"] or 1):
            continue
        # Fewer microbatches than stages never fill a pipeline, and torchtitan refuses them.
        sizes = [
            each for each in _divisors(batch // dp) if each <= _BATCH_LIMIT and batch // dp // each >= pp
        ]
        for size, recompute in product(sizes, (False, True)):
            settings = {"tp": tp, "dp": dp, "pp": pp, "micro_batch": size, "recompute": recompute}
            if all(settings[name] == row[name] for name in settings.keys() - set(vary)):
                rows.append({**row, **settings, "step_s": None, "status": None})
    return pl.DataFrame(rows, schema=like.schema)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
