"""The command `ccl-bench predict`."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.cli import PROGRAM, options
from ccl_bench.report.console import show
from ccl_bench.report.prediction import prediction_page
from ccl_bench.result.prediction import to_json

ABOUT = """\
RUN holds traces of all ranks. Its pipeline is replayed with another number of stages, replicas or \
microbatches, or another schedule; durations are drawn from the recorded ones. The answer is an interval of \
the step time, and always a prediction.

Exit status: 0; 2 wrong usage; 3 the run does not show what the configuration changes; 4 nothing can be read.
"""

Degree = Annotated[int | None, Parameter(metavar="N", validator=options.positive)]

app = options.app(
    "predict",
    ABOUT,
    [f"{PROGRAM} predict examples/runs/llama-tiny-pp4-gloo --pp 2"],
)


@app.default
def predict(
    run: Annotated[str, Parameter(metavar="", help="Directory, trace file or URL of the run.")],
    /,
    *,
    dp: Annotated[Degree, Parameter(help="Replicas; microbatches change so that the batch stays.")] = None,
    pp: Annotated[Degree, Parameter(help="Pipeline stages.")] = None,
    microbatches: Annotated[Degree, Parameter(help="Microbatches of one replica in a step.")] = None,
    schedule: Annotated[
        str | None,
        Parameter(
            metavar="NAME", help="Schedule: gpipe, 1f1b, interleaved:V with V chunks on a stage, or zb."
        ),
    ] = None,
    layers: Annotated[
        Degree, Parameter(help="Layers of the model, if the run does not state them, to divide over stages.")
    ] = None,
    allow_other_batch: Annotated[
        bool, Parameter(help="Predict also if the global batch changes: step time alone, no comparison.")
    ] = False,
    network: Annotated[
        str | None,
        Parameter(
            metavar="NETWORK",
            help="Move calls to H100-NVLink8, to alpha=5us,B=200GB/s, or to a network measured in a file: "
            "output of nccl-tests, or a CSV table of size and time.",
        ),
    ] = None,
    doubling: Annotated[
        bool, Parameter(help="Show what twice the bandwidth of each kind of link is worth.")
    ] = False,
    seed: Annotated[
        int, Parameter(metavar="N", help="Seed of the draws.", validator=options.not_negative)
    ] = 0,
    workload_card: options.Card = None,
    reading: options.ReadingOptions = options.DEFAULT_READING,
    form: options.TextOrJson = "text",
) -> int:
    """Predict the step of another configuration from one run."""
    with reading.open(run, card=workload_card) as measured:
        answer = measured.predict(
            dp=dp,
            pp=pp,
            microbatches=microbatches,
            schedule=schedule,
            layers=layers,
            network=network,
            doubling=doubling,
            allow_other_batch=allow_other_batch,
            seed=seed,
        )
    if form == "json":
        sys.stdout.write(to_json(answer).decode() + "\n")
        return NotMeasurable.exit_status if answer.refused else 0
    if answer.refused:
        raise NotMeasurable(answer.refused, where=measured.place, fix=answer.fix)
    show(prediction_page(answer))
    return 0
