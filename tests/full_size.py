"""Whether tests run at full size, which takes hours: `make figures` sets OCTAVO_TEST_FULL."""

import os

FULL = bool(os.environ.get("OCTAVO_TEST_FULL"))
