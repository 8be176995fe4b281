"""Print the requirements of an installed package, except those named in LEFT_OUT.

python requirements_of.py PACKAGE [LEFT_OUT ...]
"""

import re
import sys
from importlib.metadata import requires


def main() -> None:
    package, left_out = sys.argv[1], {name.lower() for name in sys.argv[2:]}
    for requirement in requires(package) or ():
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()
        if name not in left_out and "extra ==" not in requirement:
            print(requirement)


if __name__ == "__main__":
    main()
