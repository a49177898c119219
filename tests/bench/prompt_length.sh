#!/bin/bash
# Instructions per request under callgrind for prompts of 2K and of 128K tokens in blocks of 16, in
# timed runs and untimed replays. Tiers hold as many prompts of either length. The difference of two
# runs takes out start-up, reading presets and printing. Exit codes: 0 if no long prompt takes more
# than twice the instructions of a short one (or skipped, without valgrind), 1 if one does, 2 bad
# usage or a run that failed.
set -euo pipefail

usage="usage: prompt_length.sh [PROGRAM]   (build/release/bin/kvtier)"
if [ $# -gt 1 ]; then
  echo "$usage" >&2
  exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=${1:-$root/build/release/bin/kvtier}
short=2048
long=131072
few=200
many=600
# Each session has two requests.
requests=$(((many - few) * 2))

if ! command -v valgrind >/dev/null; then
  echo "prompt_length.sh: skipped, valgrind is not installed"
  exit 0
fi
if [ ! -x "$program" ]; then
  echo "prompt_length.sh: no program at $program; build it first" >&2
  echo "$usage" >&2
  exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The tiers of one kind of system whose prompts have $1 tokens: 4.5 prompts in the first one, 16.5 in
# the second.
first() { echo "{\"capacity\": \"$(($1 * 9 / 2))tokens\" $2}"; }
second() { echo "{\"capacity\": \"$(($1 * 33 / 2))tokens\" $2}"; }
tiers_of() {
  case $1 in
    offload) echo "\"hbm\": {\"capacity\": \"shared\", \"blocks\": $(first "$2" "")},
      \"dram\": {\"write\": \"on_create\", \"inclusive\": true, \"blocks\": $(second "$2" "")}" ;;
    offload_arc) echo "\"hbm\": {\"capacity\": \"shared\", \"blocks\": $(first "$2" "")},
      \"dram\": {\"eviction\": \"arc\", \"write\": \"on_create\", \"inclusive\": true, \"blocks\": $(second "$2" "")}" ;;
    demotion) echo "\"dram\": {\"inclusive\": true, \"blocks\": $(first "$2" "")},
      \"ssd\": {\"write\": \"on_evict\", \"inclusive\": true, \"blocks\": $(second "$2" "")}" ;;
    rounds) echo "\"dram\": {\"inclusive\": true, \"blocks\": $(first "$2" ', "round": 8')},
      \"ssd\": {\"write\": \"on_create\", \"inclusive\": true, \"blocks\": $(second "$2" ', "round": 8')}" ;;
  esac
}

# count SYSTEM MODE TOKENS SESSIONS prints the instructions of one run.
count() {
  cat >"$work/config.json" <<END
{"model": "llama3-8b", "hardware": {"preset": "h100-80g", "hbm": {"capacity": "640GiB"}},
 "system": {"name": "$1", "batching": "unified",
            "blocks": {"found_from": "scheduling", "duplicates": "kept"},
            "tiers": {$(tiers_of "$1" "$3")}},
 "serving": {"slots": 64, "token_budget": "262144tokens"},
 "workload": {"generator": "long_contexts", "measure": "all", "sessions": $4, "arrival_rate": "0.02/s",
              "think_time": {"mean": "500s"},
              "long_contexts": {"context_tokens_min": "$3tokens", "context_tokens_max": "$3tokens",
                                "questions": 2, "question_tokens": "16tokens",
                                "answer_tokens": "64tokens"}}}
END
  local mode=()
  [ "$2" = timed ] || mode=(--untimed)
  if ! valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" simulate \
    "$work/config.json" --set /model/context_window=262144tokens "${mode[@]}" >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 2
  fi
  sed -n 's/^==[0-9]*== Collected : \([0-9]*\).*/\1/p' "$work/log"
}

# per_request SYSTEM MODE TOKENS
per_request() {
  local less more
  less=$(count "$1" "$2" "$3" $few)
  more=$(count "$1" "$2" "$3" $many)
  echo $(((more - less) / requests))
}

status=0
for run in "offload timed" "offload untimed" "offload_arc timed" "offload_arc untimed" \
  "demotion untimed" "rounds untimed"; do
  read -r system mode <<<"$run"
  of_short=$(per_request "$system" "$mode" $short)
  of_long=$(per_request "$system" "$mode" $long)
  echo "$system, $mode: $of_short instructions for a prompt of 2K tokens, $of_long for one of 128K"
  [ "$of_long" -le $((2 * of_short)) ] || status=1
done
exit $status
