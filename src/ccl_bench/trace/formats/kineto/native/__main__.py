"""Say whether the native reader is used."""

import sys

from ccl_bench.trace.formats.kineto.native import reader

if __name__ == "__main__":
    absence = reader.absence()
    sys.stdout.write(f"native reader: {'used' if absence is None else f'not used, {absence}'}\n")
