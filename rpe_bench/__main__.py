"""`python -m rpe_bench` is `rpe-bench`."""

import sys

from rpe_bench.cli import main

sys.exit(main())
