"""Inference servers: the requests of a `benchmark`, and the `forward_passes` that a trace shows."""
