"""A read-only server of runs for agents, over the Model Context Protocol.

`allowed_folders` decides which runs may be read, `answer` limits and quotes answers, `run_tools` has one
method per tool, and `server` serves them on stdin and stdout.
"""
