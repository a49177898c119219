#!/bin/bash
# Instructions per turn of the 9,000-session run under callgrind. The difference of two runs takes
# out start-up, reading presets and printing. The limits are one per cent above what the release
# preset takes with GCC 12; the goal for attentionstore is 5,000. Exit codes: 0 within the limit
# (or skipped, without valgrind), 1 above it, 2 bad usage or a run that failed.
set -euo pipefail

usage="usage: instructions.sh [PROGRAM [SYSTEM]]   (build/release/bin/kvtier, attentionstore)"
if [ $# -gt 2 ]; then
  echo "$usage" >&2
  exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=${1:-$root/build/release/bin/kvtier}
system=${2:-attentionstore}
case $system in
  recompute) limit=7520 ;;
  attentionstore_lru) limit=7230 ;;
  *) limit=9815 ;;
esac
few=4500
many=9000

if ! command -v valgrind >/dev/null; then
  echo "instructions.sh: skipped, valgrind is not installed"
  exit 0
fi
if [ ! -x "$program" ]; then
  echo "instructions.sh: no program at $program; build it first" >&2
  echo "$usage" >&2
  exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# run SESSIONS runs the program, under $under if that is not empty: a sweep of one point, as simulate
# also looks for the highest stable rate of this overloaded run. Its output goes to the log, which is
# shown if it fails.
under=()
run() {
  cat >"$work/sweep.json" <<END
{"config": "$root/configs/papers/attentionstore/llama2-13b.json",
 "set": {"/system": "$system", "/workload/warmup_turns": 10000},
 "axes": [{"name": "sessions", "key": "/workload/sessions", "values": [$1]}],
 "columns": [{"name": "turns", "value": "/workload/turns", "unit": "count"}]}
END
  rm -rf "$work/out"
  if ! "${under[@]}" "$program" sweep "$work/sweep.json" --out "$work/out" --jobs 1 >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 2
  fi
}

# measure SESSIONS sets $turns and $instructions.
measure() {
  under=(valgrind --tool=callgrind --callgrind-out-file=/dev/null)
  run "$1"
  turns=$(sed -n '2s/.*,\([0-9]*\),.*/\1/p' "$work/out/results.csv")
  instructions=$(sed -n 's/^==[0-9]*== Collected : \([0-9]*\).*/\1/p' "$work/log")
  echo "$system: $1 sessions, $turns turns: $instructions instructions"
}

measure $few
few_turns=$turns
few_instructions=$instructions
measure $many
per_turn=$(((instructions - few_instructions) / (turns - few_turns)))
echo "$system: $per_turn instructions per turn (limit $limit)"
[ "$per_turn" -le "$limit" ]
