"""Tables about the device: its work and its idle time.

`work` defines what occupied a device and who launched it. `breakdown` divides each step into compute,
communication and idle time, `time_by_kind` by kernel, collective and copy, `phases` into forward, backward
and optimizer, `fsdp` by the parts of sharding. `sampled` covers hardware counters, `launches` calls and
queues, `completeness` what is missing.
"""
