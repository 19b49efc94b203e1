"""Predictions: errors on measured steps that calibrated nothing, with the split and the seed of each row.

    python benchmarks/predictions.py [--seeds N]

The tables come with the package. Nothing is chosen by the part that is predicted: the model has one set of
constants, and its beliefs about them are in src/ccl_bench/predict/step_model.toml.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from ccl_bench.predict.candidates import candidates
from ccl_bench.predict.evaluation import Evaluation, leave_one_out, split
from ccl_bench.predict.forecasting import Forecaster
from ccl_bench.predict.search import replay
from ccl_bench.predict.trials import read_trials

STUDIES = ("megatron-llama8b-8gpu", "torchtitan-llama8b-16gpu")
SPLITS = {"vtrain-single-node": 40, "vtrain-multi-node": 30}
STARTS = 20
RANKED = 2000


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="splits of each set")
    seeds = parser.parse_args().seeds
    print("| set | split | predicted | mean error | median | 80 % interval holds | regret |")
    print("|---|---|---|---|---|---|---|")
    for name, count in SPLITS.items():
        trials = read_trials(name)
        evaluations = [split(trials, count, seed) for seed in range(seeds)]
        for seed, each in enumerate(evaluations):
            _print_row(name, f"{count} rows, seed {seed}", [each])
        _print_row(name, f"mean of seeds 0 to {seeds - 1}", evaluations)
    for study in STUDIES:
        trials = read_trials("perlmutter-search").of_study(study)
        _print_row(study, "one configuration left out", [leave_one_out(trials)])
    print()
    for study in STUDIES:
        trials = read_trials("perlmutter-search").of_study(study)
        shares = [
            (played.best_tokens_per_s_per_gpu or 0) / played.table_best_tokens_per_s_per_gpu
            for played in (replay(trials, 5, seed) for seed in range(STARTS))
        ]
        wins = sum(each >= 0.95 for each in shares)
        print(
            f"search, {study}: within 5 % of the best after 5 trials from {wins} of {STARTS} starts "
            f"(seeds 0 to {STARTS - 1})"
        )
    started = time.process_time()
    trials = read_trials("perlmutter-search").of_study(STUDIES[1])
    rows = candidates(trials.rows[[1]])
    rows = rows[np.arange(RANKED) % rows.height]
    Forecaster(trials).ranking(rows, 10)
    print(f"ranking {RANKED:,} configurations: {time.process_time() - started:.2f} s of a processor")


def _print_row(name: str, how: str, evaluations: list[Evaluation]) -> None:
    mean = np.mean([np.mean(each.errors) for each in evaluations])
    median = np.mean([np.median(each.errors) for each in evaluations])
    held = np.mean([each.within_interval_ratio for each in evaluations])
    regrets = [each.regret_ratio for each in evaluations if each.regret_ratio is not None]
    # One group of one question says more about its noise than about the predictions.
    regret = f"{100 * np.mean(regrets):.1f} %" if len(evaluations[0].rows) > 50 and regrets else "-"
    print(
        f"| {name} | {how} | {evaluations[0].rows.height:,} | {100 * mean:.1f} % | {100 * median:.1f} % "
        f"| {100 * held:.0f} % | {regret} |"
    )


if __name__ == "__main__":
    main()
