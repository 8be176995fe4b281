"""Write the addresses of a fleet's replicas to stdout, one line per look, until stdin ends.

A front end runs this as a child process (`octavo.membership.ray_addresses`): a process that is connected to a
Ray cluster ends when the cluster does, and streams must not end with it.
"""

import os
import sys
import threading
import time
from typing import TextIO

from octavo.errors import OctavoError
from octavo.ray.cluster import RayFleet, connect

LOOK_SECONDS = 1.0
EXIT_FAILED = 1


def follow(name: str, output: TextIO) -> None:
    threading.Thread(target=_end_with_input, daemon=True).start()
    fleet = RayFleet(connect(None), name)
    while True:
        addresses = fleet.addresses()
        if addresses is not None:
            output.write(",".join(addresses) + "\n")
            output.flush()
        time.sleep(LOOK_SECONDS)


def _end_with_input() -> None:
    """End this process with the front end, even if it waits for Ray."""
    sys.stdin.read()
    os._exit(0)


def main(name: str) -> int:
    # Ray prints messages to stdout. They go to stderr, and only lists to the former stdout.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        follow(name, output)
    except OctavoError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FAILED
    except BrokenPipeError:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
