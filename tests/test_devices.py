"""The same answers on an accelerator as on the CPU, and no operand left on another device."""

import pytest

from tests import device_cases


@pytest.mark.slow
def test_answers_are_those_of_the_cpu(forked, tmp_path) -> None:
    """The accelerator is simulated (tests/simulated_device.py), in a process of its own."""
    mine, its = forked.Pipe()
    process = forked.Process(target=device_cases.differences, args=(tmp_path, its), daemon=True)
    process.start()
    its.close()
    found = mine.recv()  # EOFError: it did not end well
    process.join()
    assert len(found) > 30
    different = [f"{case}: {what}" for case, what in found.items() if what]
    assert not different, "\n".join(different)
