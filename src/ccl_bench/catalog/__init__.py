"""Facts with a source: devices, dtypes, collectives, models and kernel types, kept as data files."""
