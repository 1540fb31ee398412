"""`python -m rpe_bench` is `rpe-bench`."""

import sys

from rpe_bench.cli import main

if __name__ == "__main__":  # which it is not where a process of another is being prepared
    sys.exit(main())
