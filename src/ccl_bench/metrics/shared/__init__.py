"""What several metrics share.

`per_step` holds means over ranks and steps, `checks` raises where something was not recorded, `serving`
covers benchmarks and forward passes, `allocator` devices with memory.
"""
