"""What several metrics share.

`rows` and `per_step` hold means over ranks and steps, `checks` raises where something was not recorded,
`serving` covers benchmarks and forward passes, `allocator` devices with memory.
"""
