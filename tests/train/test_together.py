"""Where one process of a run refuses, all of them end at once, with one line."""

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from tests.train.cases import TINY
from tests.train.scale_runs import _run
from train.__main__ import main

SHARED = "--trainer.devices 2 --trainer.strategy ddp"


def test_a_refusal_of_the_first_ends_both(data, forked, tmp_path):
    """Only the first refuses a run that is there: the other would wait for it in a barrier."""
    run, codes = tmp_path / "run", tmp_path / "codes"
    (run / "models").mkdir(parents=True)
    (run / "notes").write_text("another's")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = f"fit --data {data} --run {run} {TINY} {SHARED}".split()
    logs = [tmp_path / f"{rank}.log" for rank in range(2)]
    processes = [
        forked.Process(target=_run, args=(rank, store.port, log, [command]), daemon=True)
        for rank, log in enumerate(logs)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
        process.kill()
    said = [log.read_text() for log in logs]
    assert said[0].count("error: ") == 1 and "exit code 2" in said[0]
    assert said[1].replace("exit code 2\nend of a command\n", "") == ""
    assert processes[1].exitcode == 2 or "exit code 2" in said[1]
