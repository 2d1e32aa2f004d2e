"""A contender of the training benchmark that costs nothing; its process imports only this."""

import os
import time


def steady(turns, fails_at=0):
    """Does nothing but say a variable, and may fail."""
    step = 0
    print(f"given {os.environ.get('GIVEN')}")
    while True:
        step += 1
        if step == fails_at:
            raise ValueError("the first line\nthe second")
        time.sleep(0.001)
        turns.step()
