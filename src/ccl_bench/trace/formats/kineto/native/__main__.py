"""Prints whether the native reader is used."""

import sys

from ccl_bench.trace.native.library import absence

if __name__ == "__main__":
    why = absence()
    sys.stdout.write(f"native reader: {'used' if why is None else f'not used, {why}'}\n")
