"""``python -m vpmetrics``, where the command itself is not on the path."""

import sys

from vpmetrics.app import main

sys.exit(main())
