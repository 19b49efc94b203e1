"""What a device did and when it was idle.

`work` defines what occupied a device and who launched it. `breakdown` divides each step into compute,
communication and idle time, `time_by_kind` by kernel, collective and copy, `phases` into forward, backward
and optimizer, `fsdp` by the parts of sharding. `sampled` covers hardware counters, `launches` calls and
queues, `completeness` what is missing.
"""
