"""`python -m megatron_longstraw`, the same as `longstraw`."""

import sys

from megatron_longstraw.cli import main

if __name__ == "__main__":
    sys.exit(main())
