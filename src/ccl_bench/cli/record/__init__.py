"""Commands that make run directories: record a command, begin a workload."""
