"""Commands that make run directories: `collect` records a command, `new` begins a workload."""
