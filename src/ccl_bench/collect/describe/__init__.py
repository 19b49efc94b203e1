"""Describing a run that was collected: metadata and workload card, from what was observed."""
