"""Commands that read runs: numbers, inspection, validation, reports, comparison, timelines, Chakra.

One module a command; each has `app(program)`, which `cli.commands` adds to `ccl-bench`. `metrics` is the
command `ccl-metrics`.
"""
