"""Bringing together what a run left: traces and small files of any framework, into one run directory."""
