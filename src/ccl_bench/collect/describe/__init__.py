"""Describe a collected run: metadata and workload card, from what was observed.

`observations` holds what the files of the run show, `torchtitan` the configuration that it ran with, and
`fill_card` writes both into the card and the metadata.
"""
