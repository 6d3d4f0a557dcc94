#!/usr/bin/env bash
# The quickstart with three seeds, one after the other: benchmarks/quickstart_seeds.sh OUT_DIR
# Raw output goes to OUT_DIR: what each run printed with its wall time, its metrics.jsonl and its curve.
set -euo pipefail
out=$(realpath "$1"); here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
{ uname -mr; nproc; grep -m1 'model name' /proc/cpuinfo; "$here/.venv/bin/pip" list 2>/dev/null | grep -iE '^(torch|transformers|ray) '; } >"$out/machine.txt"
for seed in 1 2 3; do
  (cd "$work" && export XDG_CACHE_HOME="$work/cache" TIMEFORMAT='wall %R s'
   time "$here/.venv/bin/laurel" quickstart trainer.seed=$seed data.seed=$seed) 2>&1 | sed "s#$work#.#g; s#$here#LAUREL#g" >"$out/seed$seed.log"
  cp "$work/outputs/quickstart/run-$seed/metrics.jsonl" "$out/seed$seed.jsonl"
  cp "$work/outputs/quickstart/run-$seed/curve.png" "$out/curve_seed$seed.png"
done
grep -hE 'before, |^wall' "$out"/seed?.log
