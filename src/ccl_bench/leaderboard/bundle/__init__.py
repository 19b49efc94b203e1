"""The archive that a run is published as: making it, looking through it, writing, reading and checking it."""
