"""The whole project in minutes on a CPU: stories in, a page of evidence out.

    make demo                    (or: python -m scripts.demo --out demo)

Makes stories, trains a tokenizer, packs the stories, trains a flat masked mixer and a Llama-style
transformer, asks which input tokens can be recovered from their layers before and after training,
and looks at the layers through every lens. Each step is the command that a user would type;
finished steps are not done again.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

STORIES = 8000
STEPS = 250
MODELS = {
    "flat": [],
    "llama": [
        "--model.mixers=[attention]",
        "--model.channel_mixer=swiglu",
        "--model.norm=rmsnorm",
        "--model.d_ff=352",  # three matrices of this width weigh what two of 512 do
    ],
}


def main() -> int:
    """Runs the steps; the exit code of the first that fails."""
    parser = argparse.ArgumentParser(description="Stories in, a page of evidence out.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="where everything goes")
    parser.add_argument("--force", action="store_true", help="begin anew")
    options = parser.parse_args()
    out: Path = options.out
    if options.force:
        shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    try:
        _steps(out)
    except subprocess.CalledProcessError as error:
        return error.returncode
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130
    print(f"\n{time.perf_counter() - started:.0f} s in all\npage: {(out / 'page.html').resolve()}")
    return 0


def _steps(out: Path) -> None:
    corpus, data, results = f"toy:{STORIES}", out / "data", out / "results"
    tokenizer = out / "tokenizer.json"
    if not tokenizer.exists():
        _run("tokenizer", "train", corpus, "--out", tokenizer)
    if not data.exists():
        _run("tokenizer", "pack", corpus, "--tokenizer", tokenizer, "--out", data)
    checkpoints = []
    for name, settings in MODELS.items():
        run = out / name
        last = run / "models" / f"step-{STEPS:06d}"
        if not last.exists():
            steps = f"--trainer.max_steps={STEPS}"
            fit = ["train", "fit", "--config=demo", f"--data={data}", f"--run={run}"]
            _run(*fit, steps, "--resume=auto", *settings)
        checkpoints += [run / "models" / "step-000000", last]
    _run("eval", "loss", *checkpoints, "--corpus", "toy", "--stories", 100)
    # The sweep is quick enough for every layer; the rest looks at the first and the last one.
    prompts = ["--count", 3, "--length", 12, "--out", results]
    sweep = ["--methods", "sweep", "--slices", "[:, 0:, :]", "--layers", "all"]
    _run("eval", "invert", *checkpoints, *prompts, *sweep)
    _run("eval", "invert", *checkpoints, *prompts, "--suite", "quick", "--layers", 1, 3)
    # Short prompts and little text: enough to look around, and a minute at most.
    looked = ["--count", 2, "--length", 24, "--tokens", 4096, "--corpus", corpus]
    _run("eval", "lens", *checkpoints, *looked, "--out", results)
    asked = ["--queries", 200, "--candidates", 256, "--pool", "mean", "--fit-steps", 0]
    _run("eval", "retrieval", *checkpoints, *asked, "--corpus", corpus, "--out", results)
    _run("eval", "report", results, "--out", out / "page.html")


def _run(module: str, *arguments: object) -> None:
    words = [module, *map(str, arguments)]
    print(f"\n$ python -m {shlex.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", *words], check=True)


if __name__ == "__main__":
    sys.exit(main())
