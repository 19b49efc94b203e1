"""Predictions: the step time of a configuration that nobody has run, how sure it is, and what to try next."""
