"""From a run and the names of metrics to results."""
