"""Bundles: the archives in which runs are published.

`format` defines the files, `build` makes them from a measured run, `validate` reports every mistake, and
`archive` packs and unpacks them. `redaction` removes secrets, `origin` signs, `upload` combines all of it.
"""
