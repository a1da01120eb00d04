#!/usr/bin/env bash
# Everything that only a GPU can answer, in one run of at most ten minutes. `cargo xtask gpu-bundle` puts this script beside an
# archive of what it needs; the machine needs bash, tar and Python, and a driver. What else is there (torch, transformers,
# compute-sanitizer) is used, and named if it is not.
#
#   gpu.sh [--out FOLDER] [--device cuda:0] [--stages NAMES] [--limit SECONDS] [--tiny]
#
#   probe      driver, libraries, one kernel
#   tests      each of the engine's tests on the device, in a process of its own; a failed one again without the kernels of
#              warpgroups and under compute-sanitizer
#   answers    the fixtures' tokens and SmolLM2's ten answers, against the CPU's
#   steps      decode, prefill, host memory: a line of JSON each
#   peer       torch and transformers on the same shapes
#   orders     RAGCache++'s workload, 40 questions
#   profile    each kernel's share of prefill and of decode, by ncu
#   sanitizer  memcheck and racecheck over the kernels, in the time that is left
#
# A stage that fails stops nothing. FOLDER/log grows as stages run, and FOLDER/report.tar.gz is written after each one.
# FOREWORD_NO_WARPGROUPS=1 in the environment disables the kernels of warpgroups; a test that passes only without them disables
# them for the stages after it. --tiny tries the script itself, on small models.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=gpu-report device=cuda:0 limit=580 tiny= stages=probe,tests,answers,steps,peer,orders,profile,sanitizer
while [ $# -gt 0 ]; do
    case $1 in
    --out) out=$2 && shift 2 ;;
    --device) device=$2 && shift 2 ;;
    --stages) stages=$2 && shift 2 ;;
    --limit) limit=$2 && shift 2 ;;
    --tiny) tiny=1 && shift ;;
    *) echo "gpu.sh: $1 is not known; the head of the script says what is" >&2 && exit 2 ;;
    esac
done
mkdir -p "$out" && out=$(cd "$out" && pwd) && work=$(mktemp -d) && found=$work/found && mkdir "$found" || exit 1
trap 'rm -rf "$work"' EXIT
exec > >(tee "$out/log") 2>&1
log=$!
tar xzf "$here/foreword-gpu.tar.gz" -C "$work" || exit 1
# The model comes in pieces where only so much can be carried at once.
if cat "$here"/../*/smollm2.[0-9] >"$work/smollm2.gguf" 2>/dev/null && (cd "$work" && sha256sum --quiet -c smollm2.sum); then
    smollm2=$work/smollm2.gguf
else
    smollm2= && echo "SmolLM2 is not here, or not all of it"
fi

# CUDA's libraries, where Python's packages brought them.
libraries=$(python3 - <<'PYTHON'
import glob, os, site
folders = site.getsitepackages() + [site.getusersitepackages()]
found = {os.path.dirname(path) for folder in folders for path in glob.glob(folder + "/nvidia/**/lib*.so.*", recursive=True)}
print(":".join(sorted(found)))
PYTHON
)
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}${libraries:+${LD_LIBRARY_PATH:+:}$libraries}"
export FOREWORD_TEST_DEVICE=cuda FOREWORD_FIXTURES=$work/fixtures
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
ncu=$(command -v ncu || ls /usr/local/cuda/bin/ncu 2>/dev/null)
export device tiny work found smollm2 sanitizer ncu

one_kernel=backend::cuda::tests::operations::pages::pages_are_copied_whole_and_in_part
export one_kernel

probe() {
    "$work/foreword" --version
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,compute_cap --format=csv
    python3 - <<'PYTHON'
import ctypes
for name in ["libcuda.so.1", "libcuda.so", "libcublasLt.so.13", "libcublasLt.so"]:
    try:
        ctypes.CDLL(name)
        print(name, "loads")
    except OSError as error:
        print(name, "does not load:", error)
PYTHON
    "$work/tests" --exact "$one_kernel" --nocapture
}

# The names of the engine's tests that run on a device.
names() {
    "$work/tests" --list 2>/dev/null | sed -n 's/: test$//p' |
        grep -E "^backend::cuda::tests::$([ -n "$tiny" ] && echo "operations::(rows|pages)" || echo "(operations|models|transformers)")::"
}

tests() {
    local name started failed=0 all
    all=$(names) && [ -n "$all" ] || return 1
    for name in $all; do
        started=$SECONDS
        if timeout --foreground --kill-after=5 90 "$work/tests" --exact "$name" --nocapture >"$found/test" 2>&1; then
            echo "passed in $((SECONDS - started)) s: $name"
            # How fast each kernel of prefill is, and how far logits are from those of transformers in f32.
            grep -hE 'TFLOP/s of attention$|of a deviation$' "$found/test"
            continue
        fi
        failed=1
        echo "FAILED after $((SECONDS - started)) s: $name" && tail -n 30 "$found/test"
        if FOREWORD_NO_WARPGROUPS=1 timeout --foreground --kill-after=5 90 "$work/tests" --exact "$name" >"$found/test" 2>&1; then
            echo "  it passes without the kernels of warpgroups" && touch "$found/no-warpgroups"
        fi
        [ -z "$sanitizer" ] || timeout --foreground --kill-after=5 60 "$sanitizer" --tool memcheck "$work/tests" --exact "$name" 2>&1 | tail -n 40
    done
    return $failed
}

answers() {
    python3 "$work/gpu_answers.py" --foreword "$work/foreword" --device "$device" --fixtures "$work/fixtures" \
        ${smollm2:+--smollm2 "$smollm2"} ${tiny:+--longest 16 --tokens 4}
}

steps() {
    [ -n "$tiny" ] || export FOREWORD_STEPS=$work/shape/config.json
    "$work/tests" --exact backend::cuda::tests::steps::steps_are_timed --nocapture
}

peer() {
    if [ -z "$tiny" ]; then
        python3 "$work/gpu_peer.py" --model "$work/shape" --fixtures "$work/fixtures"
    else
        python3 "$work/gpu_peer.py" --model "$work/small" --device cpu --prompts 64 --batches 1,2 --context 32 --runs 1
    fi
}

orders() {
    local sizes=(--model "$work/shape" --queries 40 --arms none,greedy,foresight+hint)
    [ -z "$tiny" ] || sizes=(--model "$work/small" --queries 2 --k 1 --arms greedy --arm-kv-tokens 4096)
    "$work/foreword" measure --device "$device" --random-weights 1 --parts orders --seeds 1 "${sizes[@]}" --json --no-report
}

profile() {
    FOREWORD_PROFILED=1 FOREWORD_STEPS=$work/slice/config.json "$ncu" --clock-control none --graph-profiling node --csv \
        --metrics gpu__time_duration.sum "$work/tests" --exact backend::cuda::tests::steps::steps_are_timed --nocapture \
        >"$found/kernels.csv" || return
    grep -c gpu__time_duration "$found/kernels.csv"
}

sanitizer() {
    local tool failed=0
    for tool in memcheck racecheck; do
        timeout --foreground --kill-after=5 100 "$sanitizer" --tool $tool --error-exitcode 9 "$work/tests" cuda::tests::operations --test-threads 1
        case $? in
        0) ;;
        124) echo "$tool has not finished" ;;
        *) failed=1 ;;
        esac
    done
    return $failed
}
export -f probe names tests answers steps peer orders profile sanitizer

# Writes what became of a stage, and the archive of all so far.
outcome() {
    echo "$1|$2|$3" >>"$found/outcomes"
    cp "$out/log" "$found/log"
    tar czf "$out/report.tar.gz.new" -C "$found" . && mv "$out/report.tar.gz.new" "$out/report.tar.gz"
}

# stage NAME SECONDS [COMMAND]: runs the function NAME, if COMMAND succeeds, and goes on whatever becomes of it.
stage() {
    local name=$1 most=$2 left started status
    [[ ,$stages, == *,$name,* ]] || return 0
    if [ $# -gt 2 ] && ! timeout --kill-after=5 30 bash -c "$3" >/dev/null 2>&1; then
        echo "▸ $name: SKIPPED, not here: $3" && outcome "$name" SKIPPED 0 && return 0
    fi
    left=$((limit - SECONDS)) started=$SECONDS
    if [ "$left" -lt 5 ]; then
        echo "▸ $name: SKIPPED, no time is left" && outcome "$name" "SKIPPED, no time" 0 && return 0
    fi
    [ ! -e "$found/no-warpgroups" ] || export FOREWORD_NO_WARPGROUPS=1
    echo "▸ $name, at $started s"
    timeout --kill-after=5 $((most < left ? most : left)) bash -c "$name" 2>"$found/$name.err" > >(tee "$found/$name.out")
    status=$?
    # Not a pipe: a process that outlives the time limit would keep it open. So `tee` gets a moment to end.
    sleep 0.2
    [ "$status" = 0 ] || tail -n 15 "$found/$name.err"
    [ "$status" = 0 ] && status=passed || status="FAILED ($status)"
    echo "  $status after $((SECONDS - started)) s"
    outcome "$name" "$status" $((SECONDS - started))
}

echo "$device, $(uname -sr), $(date -u +%FT%TZ)"
stage probe 30
stage tests 160
stage answers 90
stage steps 130
stage peer 90 "python3 -c 'import torch, transformers; assert \"$tiny\" or torch.cuda.is_available()'"
stage orders 60
stage profile 60 "test -n '$ncu'"
stage sanitizer 200 "test -n '$sanitizer'"
python3 "$work/gpu_table.py" "$found" | tee "$found/table"
cp "$out/log" "$found/log"
tar czf "$out/report.tar.gz" -C "$found" .
grep -q passed "$found/outcomes" && ! grep -q FAILED "$found/outcomes"
status=$?
exec >&- 2>&-
for _ in {1..50}; do
    kill -0 "$log" 2>/dev/null && sleep 0.1
done
exit $status
