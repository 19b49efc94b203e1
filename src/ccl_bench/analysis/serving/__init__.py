"""Inference servers: the requests of a benchmark, and forward passes."""
