"""Device memory, from snapshots of PyTorch's caching allocator.

`block_lifetimes` replays the history, with the rules of the `allocator`. From it follow the `timeline` with
its peaks, `fragmentation`, and the `call_sites` that hold memory.
"""
