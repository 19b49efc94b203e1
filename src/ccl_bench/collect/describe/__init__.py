"""Description of a collected run: metadata and workload card, from observations.

`observations` reads the files of the run, `torchtitan` its configuration, and `fill_card` writes both into
the card and the metadata.
"""
