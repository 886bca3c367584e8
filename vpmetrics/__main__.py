"""``python -m vpmetrics``, where the command itself is not on the path."""

import sys

from vpmetrics.cli import main

sys.exit(main())
