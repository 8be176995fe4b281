"""Stands in for `octavo replica`: it reports to its supervisor, and ends on SIGTERM. Computes nothing."""

import os
import signal
import sys
import time

from octavo.replica.report import REPORT_VARIABLE, ReplicaReport
from octavo.server.notify import Notifier


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    name = sys.argv[sys.argv.index("--replica-name") + 1]
    if "--fails" in sys.argv:
        sys.exit(7)
    assert not any(variable.startswith("RAY_") for variable in os.environ), "the supervisor removes them"
    notifier = Notifier.take(os.environ)
    report = ReplicaReport(
        name=name,
        address=f"127.0.0.1:{os.getpid()}",
        is_ready=True,
        is_draining=False,
        queue_seconds=0.0,
        num_sequences=0,
        max_running=1,
    )
    while True:
        notifier.report(REPORT_VARIABLE, report.encode())
        time.sleep(0.02)


if __name__ == "__main__":
    main()
