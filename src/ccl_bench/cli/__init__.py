"""The commands: parse, call the library, print.

`bench` and `metrics` are the entry points. Commands are in `measure`, `record` and `publish`; `commands` puts
them together. `runner` turns errors into messages and exit statuses, `options` has what commands share.
"""

PROGRAM = "ccl-bench"
"""Name of the command in messages."""
