"""Integrations into other programs: agents, dashboards, experiment trackers.

`agents` serves runs over the Model Context Protocol, `watching` measures a training while it runs and exports
the values to dashboards, `trackers` logs results to experiment trackers. Their packages are extras, imported
on demand.
"""
