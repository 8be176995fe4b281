"""How long a test waits for what must happen before it says that it never will.

A guard against hanging, not a measurement: a machine would have to be a hundred times slower than usual to
reach it. Speed is shown as a ratio (the fixture `figure`), and is never asserted in seconds.
"""

HANG_SECONDS = 300.0
