"""Measures the golden rows anew, prints what differs from the stored ones, and stores them.

    python -m tests.golden.renew            # all rows
    python -m tests.golden.renew --dry-run  # print only

Read every line before committing: each is a figure that a user would see changed.
"""

import argparse
import json
from typing import Any

import torch

from tests.golden.rows import CASES, FILE, alike, differences, measure, stored


def main() -> None:
    """Renews what differs; a figure that is like the stored one stays as it is stored."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden.renew",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dry-run", action="store_true", help="print what differs, store nothing")
    dry = parser.parse_args().dry_run
    torch.set_num_threads(1)
    before, lines = stored(), []
    for case in CASES:
        known, now = before.get(case, {}), measure(case)
        for line in differences(known, now):
            print(f"{case} / {line}")
        kept = {name: known[name] if name in known and alike(name, known[name], value)
                else _short(value) for name, value in now.items()}  # fmt: skip
        lines.append(json.dumps({"row": case} | kept, ensure_ascii=False) + "\n")
    if not dry:
        FILE.write_text("".join(lines), encoding="utf-8")


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return [_short(one) for one in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
