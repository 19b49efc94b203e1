"""`python -m ccl_bench` is `ccl-bench`."""

import sys

from ccl_bench.cli.bench import main

sys.exit(main())
