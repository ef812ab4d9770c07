"""The command line as `python -m autoplan`."""

import sys

from autoplan.cli import main

if __name__ == "__main__":
    sys.exit(main())
