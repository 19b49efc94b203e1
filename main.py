"""The historical command from the root of the checkout: `python main.py --trace=RUN --metric=NAME`."""

import sys

from tools.main import main

if __name__ == "__main__":
    sys.exit(main(program="main.py"))
