"""Trace files to tables: finding the files of a run, their ranks, and reading each trace."""
