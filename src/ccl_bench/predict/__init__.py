"""Predictions: the step time of a configuration that nobody has run, how sure it is, and what to try next.

From one recorded run: `recorded_run` holds the durations of its pipeline, `schedule_graph` replays it in
another shape, `networks` with other transfers, and `prediction` answers. Other modules start from trials.
"""
