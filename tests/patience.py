"""How long a test waits for an event before it fails.

This guards against hanging tests and measures nothing: only a machine that is a hundred times slower than
usual reaches it. Speed is reported as a ratio (the fixture `figure`) and never asserted in seconds.
"""

HANG_SECONDS = 300.0
