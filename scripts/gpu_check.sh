#!/usr/bin/env bash
# Everything that only a GPU can tell, in calls of under ten minutes each.
#
#   scripts/gpu_check.sh [DIR]                 parts: tests kernels inversion, in this order
#   scripts/gpu_check.sh [DIR] quick           a first look, in 300 s: DIR/quick.md and .csv
#   scripts/gpu_check.sh [DIR] training
#   scripts/gpu_check.sh [DIR] PART...         any of them; `training inversion` too fit in one call
#
# Needs a CUDA device and Python with torch, triton, numpy and pytest, which do for tests and kernels;
#   for the others           tokenizers, safetensors
#   for inversion            rich, pyyaml, jinja2, scipy, tqdm, tyro, docstring-parser
#   for training             lightning, jsonargparse[signatures], pyyaml, transformers, accelerate
#   for quick                lightning, jsonargparse[signatures], pyyaml, rich, jinja2, scipy, tqdm,
#                            tyro, docstring-parser
# Tests and usual parts of what is not installed are skipped, with a line that says so; a part that
# is named and cannot run has failed. Downloads nothing.
# Writes to DIR (gpu-check): PART.log of each part, kernels-cuda.csv and .md, inversion-cuda.md,
# training-cuda.csv and .md, quick.csv and .md.
# The exit status is the number of parts that failed.
#
# To keep what was measured: copy to docs/benchmarks DIR/kernels-cuda.* as kernels-gpu.*,
# inversion-cuda.md as inversion-gpu.md, training-cuda.* as training-gpu.*.
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
USUAL=(tests kernels inversion)
ALL=("${USUAL[@]}" training quick)

# A part is a function, with the seconds that it may take: the usual ones and the start within 600
# in all. To add one, write it and name it in ALL.
tests_seconds=270
needs() { # what a part, or a file of tests, imports beyond torch, triton, numpy and pytest
    case $1 in
        inversion)
            echo tokenizers, safetensors, rich, yaml, jinja2, scipy, tqdm, tyro, docstring_parser ;;
        training)
            echo tokenizers, safetensors, lightning, jsonargparse, yaml, transformers, accelerate ;;
        quick)
            echo tokenizers, safetensors, lightning, jsonargparse, yaml, rich, jinja2, scipy, tqdm, \
                tyro, docstring_parser ;;
        tests/train/* | tests/scripts/test_training.py)
            echo tokenizers, safetensors, lightning, jsonargparse, yaml ;;
        *) echo pytest ;;
    esac
}
tests() {
    local file failed=0 jobs=()
    for file in $(grep -rl "mark.gpu" tests --include="test_*.py"); do
        if ! "$python" -c "import $(needs "$file")" 2>/dev/null; then
            echo "skipped $file: needs $(needs "$file")"
            continue
        fi
        # The files side by side: most of their time is Triton compiling.
        "$python" -m pytest -m gpu -W default --no-showlocals --durations=5 "$file" &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job" || failed=1; done
    return $failed
}

kernels_seconds=240
kernels() {
    "$python" -m scripts.bench.kernels --device cuda --seconds 195 --out "$out"
}

inversion_seconds=60
inversion() {
    "$python" -m scripts.bench.inversion --device cuda --turns 2 --out "$out"
}

training_seconds=520
training() {
    "$python" -m scripts.bench.training --device cuda --seconds 380 --out "$out"
}

quick_seconds=300
quick() {
    # The variable is the benchmark's own to set.
    env -u REMNANT_KERNELS "$python" -m scripts.bench.quick --device cuda --out "$out"
}

run() {
    local part=$1 seconds=${1}_seconds start=$SECONDS status
    export out root python
    export -f "${part?}" needs
    timeout --kill-after=10 "${!seconds}" bash -c "$part" >"$out/$part.log" 2>&1
    status=$?
    [ $status -eq 124 ] && echo "stopped after ${!seconds} s" >>"$out/$part.log"
    echo "== $part: exit status $status, $((SECONDS - start)) s"
    tail -n 60 "$out/$part.log"
    return $status
}

main() {
    out=${1:-gpu-check}
    shift || true
    local parts=("${@:-${USUAL[@]}}") part failed=0
    for part in "${parts[@]}"; do
        if ! declare -F "$part" >/dev/null || [[ " ${ALL[*]} " != *" $part "* ]]; then
            echo "error: part '$part': expected one of: ${ALL[*]}" >&2
            exit 2
        fi
    done
    mkdir -p "$out" || exit 2
    out=$(cd "$out" && pwd)
    cd "$root" || exit 2
    if ! "$python" -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
        echo "error: $python finds no CUDA device; set PYTHON to one that does" >&2
        exit 2
    fi
    for part in "${parts[@]}"; do
        if ! "$python" -c "import $(needs "$part")" 2>/dev/null; then
            echo "== $part: skipped: needs $(needs "$part")"
            [ $# -eq 0 ] || failed=$((failed + 1))
            continue
        fi
        run "$part" || failed=$((failed + 1))
    done
    exit $failed
}

main "$@"
