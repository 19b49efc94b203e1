"""The archive that a run is published as.

`format` defines its files, `build` makes them from a measured run, `validate` reports every mistake, and
`archive` packs and unpacks them. `redaction` keeps secrets from leaving; `upload` prepares all of it.
"""
