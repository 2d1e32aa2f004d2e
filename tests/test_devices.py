"""The same answers on an accelerator as on the CPU, and no operand left on another device.

The accelerator is simulated (`tests/simulated_device.py`), in processes of its own.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REFUSED = """
import torch
from tests.simulated_device import simulated_device

def refused(case):
    try:
        case()
    except (RuntimeError, TypeError):
        return True

with simulated_device() as device:
    x, on_cpu, few = torch.ones(3, 2).to(device), torch.ones(3, 2), torch.tensor([0, 1])
    assert (x.device.type, x.device.index, (x @ x.T).device) == ("sim", 0, device)
    assert refused(lambda: x + on_cpu)
    assert refused(lambda: on_cpu * x.sum())
    assert refused(lambda: on_cpu[few.to(device)])
    assert refused(lambda: x.index_put_((few,), torch.ones(2, 2)))
    assert refused(lambda: x.index_select(0, few))
    assert refused(lambda: x.numpy())
    assert refused(lambda: torch.randn(3, device=device, generator=torch.Generator()))
    assert refused(lambda: torch.randn(3, generator=torch.Generator(device)))
    assert (x * torch.tensor(2.0)).device == x[few].device == device
    assert torch.tensor([x.sum(), x[0, 0]]).tolist() == [6.0, 1.0]  # .item() by C++
    assert torch.zeros_like(x, device="cpu").device.type == x.cpu().device.type == "cpu"
    layer = torch.nn.Linear(2, 1).to(device)
    layer(x).sum().backward()
    assert layer.weight.grad.device == device
assert refused(lambda: torch.ones(3, device="sim"))
assert torch.Generator().device.type == "cpu"
print("all well")
"""


def answer(*words: str) -> str:
    command, root = [sys.executable, *words], Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_simulated_device_refuses_what_a_gpu_does():
    assert answer("-c", REFUSED) == "all well\n"


@pytest.mark.parametrize("group", ["solvers", "questions", "training"])
def test_answers_are_those_of_the_cpu(group: str):
    found = json.loads(answer("-m", "tests.device_cases", group))
    assert len(found) > 10
    different = [f"{case}: {what}" for case, what in found.items() if what]
    assert not different, "\n".join(different)
