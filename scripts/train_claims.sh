#!/usr/bin/env bash
# Trains the models that `python -m eval claims` asks, three seeds each, on packed TinyStories.
#
#   scripts/train_claims.sh DATA RUNS [NAME...]      only runs whose names begin so; default: all
#
# The curves behind the claims take the same runs. What was trained already is left alone, what was
# stopped goes on. Two calls with other names share two cores well (OMP_NUM_THREADS=1); all of it
# takes them a few hours.
set -euo pipefail

data=${1:?give the packed data (python -m tokenizer pack)} runs=${2:?give a directory for the runs}
shift 2
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

fit() {  # NAME SETTINGS...
    local name=$1 prefix wanted=${#names[@]}
    shift
    for prefix in "${names[@]}"; do [[ $name == "$prefix"* ]] && wanted=0; done
    [ "$wanted" -eq 0 ] || return 0
    "${PYTHON:-python}" -m train fit --data "$data" --run "$runs/$name" --wandb disabled --resume auto \
        --validate_tokens 65536 "$@"
}

names=("$@")
short=(--trainer.max_steps 300 --schedule.warmup_steps 30)
wide=(--model.d_model 256 --model.n_layers 8 --model.context 256 --batch.size 8 "${short[@]}")
adamw=(--optimizer.name adamw --optimizer.muon_lr null --optimizer.muon_mixing false
    --trainer.max_steps 1000 --schedule.warmup_steps 100 --save_steps "[100]")

for seed in 0 1 2; do
    s=(--seed "$seed")
    for mixers in flat expanded parallel headed "attention(heads=4)', 'flat"; do
        name=${mixers%%(*}
        fit "${name/attention/hybrid}-s$seed" --config flat-small --model.mixers "['$mixers']" \
            "${adamw[@]}" --optimizer.lr 4e-3 "${s[@]}"
    done
    fit "expanded-f1-s$seed" --config flat-small --model.mixers "['expanded(factor=1)']" \
        "${adamw[@]}" --optimizer.lr 4e-3 "${s[@]}"
    fit "llama-s$seed" --config llama-small "${adamw[@]}" --optimizer.lr 3e-3 "${s[@]}"

    fit "flat-wide-s$seed" --config flat-small "${wide[@]}" --optimizer.lr 8e-3 \
        --optimizer.muon_lr 8e-3 "${s[@]}"
    fit "llama-wide-s$seed" --config llama-small "${wide[@]}" --model.d_ff 704 \
        --optimizer.lr 3e-3 --optimizer.muon_lr 4e-3 "${s[@]}"
    fit "expanded-d64-s$seed" --config flat-small --model.mixers "['expanded(factor=1)']" \
        --model.d_model 64 --model.n_layers 8 "${short[@]}" "${s[@]}"
done
fit flat-d512-s0 --config flat-small "${wide[@]}" --model.d_model 512 --model.context 512 \
    --batch.size 4 --trainer.max_steps 200 --optimizer.lr 6e-3 --optimizer.muon_lr 6e-3
fit flat-d64-n64-s0 --config flat-small --model.d_model 64 --model.n_layers 64 "${short[@]}"
