"""Predictions of the step of another configuration or network, with an interval, from recorded runs.

`recorded_run` holds the durations of a recorded pipeline, `schedule_graph` replays another shape of it, and
`prediction` answers. `networks` fits latency and bandwidth, and replays a run on another network.
"""

from __future__ import annotations

from ccl_bench.predict.prediction import Asked, predict_run

__all__ = ["Asked", "predict_run"]
