"""The subjects of a report, one module each: from an observation to numbers, charts and tables."""
