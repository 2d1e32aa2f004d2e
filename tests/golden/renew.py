"""Measures the golden rows anew, prints what differs from the stored ones, and stores them.

    python -m tests.golden.renew            # all parts
    python -m tests.golden.renew search     # one or some of them
    python -m tests.golden.renew --dry-run  # print only

Read every line before committing: each is a figure that a user would see changed.
"""

import argparse
import tempfile
from pathlib import Path

import torch

from tests.golden import table
from tests.golden.adaptor import Table, ask
from tests.golden.suite import SUITE


def measure(part: str, folder: Path) -> Table:
    """The table of a part of the suite, its results in a folder."""
    found: Table = {}
    for case, step in SUITE[part].items():
        found |= ask(step, case, folder)
    return found


def main() -> None:
    """Renews the parts asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden.renew",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(SUITE))
    parser.add_argument("--dry-run", action="store_true", help="print what differs, store nothing")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(SUITE):
        parser.error(f"no part {', '.join(unknown)}; use some of {', '.join(SUITE)}")
    torch.set_num_threads(1)
    count = 0
    for part in options.parts or SUITE:
        with tempfile.TemporaryDirectory() as folder:
            measured = measure(part, Path(folder))
        for line in table.differences(table.read(part), measured):
            print(f"{part} / {line}")
            count += 1
        if not options.dry_run:
            table.write(part, measured)
    print(f"{count} quantities differ")


if __name__ == "__main__":
    main()
