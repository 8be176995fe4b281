"""Compare the golden vectors with what this machine computes, or write them.

    python tools/golden_vectors.py            compare, on every instruction set of this processor
    python tools/golden_vectors.py --write    write tests/golden/golden_vectors.json
    python tools/golden_vectors.py --write --same-version REASON

Changed hashes are not written while OV_ARITHMETIC is unchanged: increase it in octavo_kernels.h, rebuild
the library and add a row to docs/law.md. Use `--same-version` for a number that has not been released yet.
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


def write_error(before: Golden, now: Golden, reason: str | None) -> str | None:
    """Return why the file must not be written, or None."""
    differing = changed(before.hashes, now.hashes) + changed(before.engine, now.engine)
    if differing and before.arithmetic == now.arithmetic and not reason:
        return (
            f"{len(differing)} hashes differ ({', '.join(differing[:5])}, ...), but OV_ARITHMETIC is still "
            f"{now.arithmetic}: increase it, or give a reason with --same-version"
        )
    if not differing and before.arithmetic != now.arithmetic:
        return (
            f"OV_ARITHMETIC is {now.arithmetic} and was {before.arithmetic}, but no hash differs: restore it"
        )
    return None


def compute(isa: str, folder: Path) -> Golden:
    library, command = find_library(), compiler()
    if library is None or command is None:
        sys.exit("no native library or no C++ compiler: install a compiler (or set CXX), then pip install .")
    run = run_program(build_program(command, library.resolve(), folder), isa)
    engine = dequantised_hashes(folder)
    for dtype in DTYPES:
        engine |= engine_hashes(folder, dtype, kernels=isa)
    return Golden(run.arithmetic, run.hashes, engine)


def write(now: Golden, reason: str | None) -> None:
    if FILE.exists() and (error := write_error(read_golden(), now, reason)):
        sys.exit(error)
    if reason:
        print(f"the arithmetic version stays {now.arithmetic}: {reason}")
    now.write()
    print(f"wrote {len(now.hashes)} kernel and {len(now.engine)} answer hashes, arithmetic {now.arithmetic}")


def compare(isa: str, now: Golden) -> bool:
    """Return whether all hashes equal those of the file; print those that do not."""
    golden = read_golden()
    problems = [problem(golden.hashes, now.hashes), problem(golden.engine, now.engine)]
    if golden.arithmetic != now.arithmetic:
        problems.append(f"the file has arithmetic {golden.arithmetic}, the library {now.arithmetic}")
    for one in filter(None, problems):
        print(f"{isa}: {one}")
    if not any(problems):
        print(f"{isa}: all hashes equal those of the file")
    return not any(problems)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="write the file with the results of the portable code"
    )
    parser.add_argument("--same-version", metavar="REASON", help="write changed hashes without a new version")
    arguments = parser.parse_args()
    if arguments.same_version and not arguments.write:
        parser.error("use --same-version only with --write")
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
