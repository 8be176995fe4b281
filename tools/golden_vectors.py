"""The golden vectors: compare what this machine computes with the file, or write the file.

    python tools/golden_vectors.py            compare, on every instruction set that this processor has
    python tools/golden_vectors.py --write    write tests/golden/golden_vectors.json
    python tools/golden_vectors.py --write --same-version REASON

Hashes that differ under an unchanged OV_ARITHMETIC are not written: raise it in octavo_kernels.h, build the
library again, and add a row to docs/law.md. `--same-version` is for a number that nobody has used yet.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from golden.engine_vectors import DTYPES, dequantised_hashes, engine_hashes
from golden.program import (
    FILE,
    ISAS,
    Golden,
    NoSuchIsa,
    build_program,
    changed,
    compiler,
    problem,
    read_golden,
    run_program,
)
from octavo.kernels.library import find_library


def refusal(before: Golden, now: Golden, reason: str | None) -> str | None:
    """Why the file must not be written, if so."""
    moved = changed(before.hashes, now.hashes) + changed(before.engine, now.engine)
    if moved and before.arithmetic == now.arithmetic and not reason:
        return (
            f"{len(moved)} hashes differ ({', '.join(moved[:5])}, ...), and OV_ARITHMETIC is still "
            f"{now.arithmetic}: raise it, or say with --same-version why not"
        )
    if not moved and before.arithmetic != now.arithmetic:
        return f"OV_ARITHMETIC is {now.arithmetic} and was {before.arithmetic}, but no hash differs: leave it"
    return None


def compute(isa: str, folder: Path) -> Golden:
    library, command = find_library(), compiler()
    if library is None or command is None:
        sys.exit(
            "there is no native library, or no C++ compiler: pip install . with one at hand (CXX names it)"
        )
    run = run_program(build_program(command, library.resolve(), folder), isa)
    engine = dequantised_hashes(folder)
    for dtype in DTYPES:
        engine |= engine_hashes(folder, dtype, kernels=isa)
    return Golden(run.arithmetic, run.hashes, engine)


def write(now: Golden, reason: str | None) -> None:
    if FILE.exists() and (why := refusal(read_golden(), now, reason)):
        sys.exit(why)
    if reason:
        print(f"the version stays {now.arithmetic}: {reason}")
    now.write()
    print(
        f"{len(now.hashes)} hashes of kernels and {len(now.engine)} of answers, arithmetic {now.arithmetic}"
    )


def compare(isa: str, now: Golden) -> bool:
    """Whether all is as in the file; says what is not."""
    golden = read_golden()
    problems = [problem(golden.hashes, now.hashes), problem(golden.engine, now.engine)]
    if golden.arithmetic != now.arithmetic:
        problems.append(f"the file is of arithmetic {golden.arithmetic}, the library of {now.arithmetic}")
    for one in filter(None, problems):
        print(f"{isa}: {one}")
    if not any(problems):
        print(f"{isa}: every hash is that of the file")
    return not any(problems)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the file, computed with portable code")
    parser.add_argument("--same-version", metavar="REASON", help="write other hashes under the same number")
    arguments = parser.parse_args()
    if arguments.same_version and not arguments.write:
        parser.error("--same-version is for --write")
    are_equal = True
    with tempfile.TemporaryDirectory() as folder:
        for isa in ISAS[:1] if arguments.write else ISAS:
            try:
                now = compute(isa, Path(folder))
            except NoSuchIsa as error:
                print(error)
                continue
            if arguments.write:
                write(now, arguments.same_version)
            else:
                are_equal = compare(isa, now) and are_equal
    sys.exit(0 if are_equal else 1)


if __name__ == "__main__":
    main()
