#!/bin/sh
# A vLLM with its bridge: engine.sh MODEL_FOLDER NAME [NUMBER [further arguments of vLLM]]
#
#   vLLM's API         8000 + NUMBER, clients' requests come from Envoy
#   KV events          5557 + NUMBER, repeated at 5657 + NUMBER
#   bridge             8100 + NUMBER, copies of requests; 9100 + NUMBER, its feed, probes and metrics
#
# Everything listens on loopback alone; events hold prompts as token ids. Ends both on Ctrl-C, and when one of them ends.
set -eu
model=${1:?folder of the checkpoint} name=${2:?name of the model} number=${3:-0}
shift; shift; [ $# -eq 0 ] || shift
: "${VLLM:=vllm}" "${FOREWORD:=target/release/foreword}"

# vLLM connects to an address instead of listening there, unless it holds `*` or `::`: this one is 127.0.0.1 to both, as an
# IPv6 address.
# buffer_steps: batches that vLLM keeps to repeat them, one for each step that stored or dropped a block.
events='{"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv-events", "buffer_steps": 10000,
  "endpoint": "tcp://[::ffff:127.0.0.1]:'$((5557 + number))'", "replay_endpoint": "tcp://[::ffff:127.0.0.1]:'$((5657 + number))'"}'

# The engine's own cached_tokens stand in its answers only with --enable-prompt-tokens-details, and in streams whose clients do
# not ask for usage only with --enable-force-include-usage.
$VLLM serve "$model" --served-model-name "$name" --host 127.0.0.1 --port $((8000 + number)) \
  --enable-prefix-caching --enable-prompt-tokens-details --enable-force-include-usage --kv-events-config "$events" "$@" &
engine=$!
"$FOREWORD" kv-bridge --model "$model" --served-model-name "$name" --listen 127.0.0.1:$((8100 + number)) \
  --events tcp://127.0.0.1:$((5557 + number)) --replay tcp://127.0.0.1:$((5657 + number)) &
bridge=$!
trap 'kill "$engine" "$bridge" 2>/dev/null' INT TERM EXIT
while kill -0 "$engine" 2>/dev/null && kill -0 "$bridge" 2>/dev/null; do sleep 1; done
