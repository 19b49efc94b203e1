"""Predictions: the step time of a configuration that nobody has run, how sure it is, and what to try next.

From one recorded run: `recorded_run` holds the durations of its pipeline, `schedule_graph` replays another
shape of it, `networks` replays it with other transfers, and `prediction` answers. Other modules start from trials.
"""
