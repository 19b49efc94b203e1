"""Publishing: taking bundles in, recomputing their numbers, and what may become of them afterwards."""
