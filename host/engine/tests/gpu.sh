#!/usr/bin/env bash
# Everything that only a GPU can answer, in one run: figures first, then correctness, then the peer, then the sanitizer.
# Needs built programs and Python; what else is there (transformers, compute-sanitizer) is used, and named if it is not.
#
#   gpu.sh --foreword PROGRAM [--tests PROGRAM] [--device cuda:0] [--out FOLDER] [--parts NAMES] [--tiny]
#
# --foreword  the host, built with the kernels:    cargo xtask kernels && cargo build --release -p foreword
# --tests     the engine's unit tests as a program: cargo test --release -p foreword-engine --lib --no-run
# --device    where to measure; cpu tries the script itself
# --parts     some of measure,operations,answers,transformers,sanitizer: where a machine is lent for minutes
# --tiny      a small model and few runs, likewise
#
# A part that fails stops nothing. The log, each part's output and the table stay in the folder.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
foreword= tests= device=cuda:0 out=gpu-report tiny=
parts=measure,operations,answers,transformers,sanitizer
while [ $# -gt 0 ]; do
    case $1 in
    --foreword) foreword=$2 && shift 2 ;;
    --tests) tests=$2 && shift 2 ;;
    --device) device=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --parts) parts=$2 && shift 2 ;;
    --tiny) tiny=1 && shift ;;
    *) echo "gpu.sh: $1 is not known; the head of the script says what is" >&2 && exit 2 ;;
    esac
done
[ -x "$foreword" ] || { echo "gpu.sh: --foreword must name the built host" >&2 && exit 2; }
mkdir -p "$out" && out=$(cd "$out" && pwd)
exec > >(tee "$out/log") 2>&1

# CUDA's libraries, where Python's packages brought them.
libraries=$(python3 - <<'PYTHON'
import glob, os, site, sys
folders = site.getsitepackages() + [site.getusersitepackages()]
found = {os.path.dirname(path) for folder in folders for path in glob.glob(folder + "/nvidia/**/lib*.so.*", recursive=True)}
print(":".join(sorted(found)))
PYTHON
)
export LD_LIBRARY_PATH="${libraries:+$libraries:}${LD_LIBRARY_PATH:-}"

# Shapes: Qwen2.5-7B (examples/shapes/7b), or one that a CPU computes in seconds.
model=$out/model && mkdir -p "$model"
if [ -n "$tiny" ]; then
    hidden=128 layers=2 heads=4 kv_heads=2 inner=256 vocabulary=512
    prompt=256 context=128 batches=1,4 runs=2
    more=(--queries 4 --seeds 1 --arms none,greedy,foresight+hint --arm-kv-tokens 8192 --sweep-queries 4 --overlaps 0.6
        --groups 1 --ks 5 --pools 4096 --answers 2)
else
    prompt=4096 context=2048 batches=1,8,32 runs=9 more=(--pools 8192,16384,32768)
fi
if [ -z "$tiny" ]; then
    cp "$here/../../../examples/shapes/7b/config.json" "$model"
else
    cat >"$model/config.json" <<JSON
{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": $hidden, "num_hidden_layers": $layers,
 "num_attention_heads": $heads, "num_key_value_heads": $kv_heads, "intermediate_size": $inner, "vocab_size": $vocabulary,
 "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "torch_dtype": "bfloat16"}
JSON
fi
sizes=(--model "$model" --random-weights 1 --prompt $prompt --context $context --batches $batches --runs $runs "${more[@]}"
    --json --report "$out/measure.html")

# part NAME SECONDS COMMAND…: runs it, says what became of it, goes on.
part() {
    local name=$1 limit=$2 started=$SECONDS outcome
    shift 2
    echo "▸ $name: $*"
    if timeout "$limit" "$@" >"$out/$name.out" 2>"$out/$name.err"; then
        outcome=passed
    else
        outcome="FAILED ($?)"
        tail -n 15 "$out/$name.out" "$out/$name.err"
    fi
    echo "  $outcome after $((SECONDS - started)) s"
    echo "$name|$outcome|$((SECONDS - started))" >>"$out/parts"
}

skip() {
    echo "▸ $1: SKIPPED, $2"
    echo "$1|SKIPPED, $2|0" >>"$out/parts"
}

# asked NAME: whether the part was asked for; it is named among the skipped ones if not.
asked() {
    [[ ,$parts, == *,$1,* ]] || { skip "$1" "not asked for"; false; }
}

rm -f "$out/parts"
echo "$("$foreword" --version), $device, $(uname -sr), $(date -u +%FT%TZ)"
if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
fi

if asked measure; then
    part measure 1500 "$foreword" measure --device "$device" "${sizes[@]}"
    cat "$out/measure.out"
fi

# Where the tests find the fixtures and what transformers computed of them.
fixtures=$here/../fixtures
export FOREWORD_FIXTURES=$fixtures

if ! asked operations; then
    :
elif [ -n "$tests" ]; then
    part operations 300 "$tests" cuda --nocapture
    # Which devices the tests found.
    grep -h SKIPPED "$out/operations.err" "$out/operations.out" | sort | uniq -c
    # How fast each kernel of prefill is.
    grep -h 'TFLOP/s of attention$' "$out/operations.out"
    # How far the logits are from those of transformers in f32.
    grep -h 'of a deviation$' "$out/operations.out"
else
    skip operations "--tests names no program"
fi

# The same greedy tokens from the host's two devices, on models with known answers.
if ! asked answers; then
    :
elif [ -d "$fixtures/qwen2" ]; then
    smollm2=$here/../../../.tools/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    [ -n "$tiny" ] && few=(--longest 16) || few=()
    [ -f "$smollm2" ] && few+=(--smollm2 "$smollm2")
    part answers 240 python3 "$here/gpu_answers.py" --foreword "$foreword" --device "$device" --fixtures "$fixtures" "${few[@]}"
    cat "$out/answers.out"
else
    skip answers "the fixtures are not here"
fi

if ! asked transformers; then
    :
elif [ "$device" != cpu ] && python3 -c 'import transformers, torch; assert torch.cuda.is_available()' 2>/dev/null; then
    part transformers 420 python3 "$here/gpu_peer.py" --model "$model" --prompt $prompt --context $context --batches $batches
    cat "$out/transformers.out"
elif [ -n "$tiny" ] && python3 -c 'import transformers, torch' 2>/dev/null; then
    part transformers 420 python3 "$here/gpu_peer.py" --model "$model" --prompt $prompt --context $context --batches $batches --cpu
else
    skip transformers "there is no transformers with a CUDA device"
fi

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if ! asked sanitizer; then
    :
elif [ -n "$sanitizer" ] && [ -n "$tests" ] && [ "$device" != cpu ]; then
    for tool in memcheck racecheck; do
        part "$tool" 240 "$sanitizer" --tool $tool --error-exitcode 9 "$tests" cuda::tests::operations --test-threads 1
        tail -n 3 "$out/$tool.out"
    done
else
    skip sanitizer "it needs compute-sanitizer, --tests and a device"
fi

python3 "$here/gpu_table.py" "$out"
