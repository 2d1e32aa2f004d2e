"""The same answers on an accelerator as on the CPU, and no operand left on another device.

The accelerator is simulated (`tests/simulated_device.py`), in a process of its own.
"""

import json
import subprocess
import sys
from pathlib import Path


def test_answers_are_those_of_the_cpu() -> None:
    command, root = [sys.executable, "-m", "tests.device_cases"], Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 35
    different = [f"{case}: {what}" for case, what in found.items() if what]
    assert not different, "\n".join(different)
