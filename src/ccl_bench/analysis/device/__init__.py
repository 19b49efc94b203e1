"""What a device did, by kind and by what launched it: kernels, copies, phases, sharding, idle time."""
