"""Runs for agents: a read-only server that speaks the Model Context Protocol.

`allowed_folders` decides which runs may be read, `answer` bounds and quotes what is said of them, `run_tools`
has one method for each question, and `server` puts them on stdin and stdout.
"""
