"""Boards without a server: a folder of bundles in a git repository, to which merge requests add rows."""

from __future__ import annotations
