"""Three hosts behind a router that knows nothing of them: sglang-router or vllm-router, from PyPI.

    python3 drop_in.py FOREWORD MODEL sglang|vllm POLICY

FOREWORD is the program, MODEL a checkpoint's folder. The routers' packages must be importable
(`pip install sglang-router==0.3.2 vllm-router==0.1.17`). Thirty chats about six documents go through the router, and a
response and a message where it takes them; what each host was asked is printed. With `kv_aware`, vllm-router follows the
hosts' KV events over ZeroMQ, and its log says how many tokens of each prompt it believed to be held.
"""

import collections
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

PROGRAM, MODEL, ROUTER, POLICY = sys.argv[1:]
MODULE = {"sglang": "sglang_router.launch_router", "vllm": "vllm_router.launch_router"}[ROUTER]
HOSTS, CHATS, DOCUMENTS = 3, 30, 6
PATIENCE = 90


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def wait(url, what):
    start = time.time()
    while ask(url)[0] != 200:
        assert time.time() - start < PATIENCE, f"{what} is not there after {PATIENCE} s"
        time.sleep(0.2)
    return time.time() - start


def main(folder):
    processes = []
    try:
        hosts = []
        for _ in range(HOSTS):
            clients, internal, events, replay = (free_port() for _ in range(4))
            arguments = [PROGRAM, "serve", "--model", MODEL, "--name", "m", "--drop-in", ROUTER]
            arguments += ["--listen", f"127.0.0.1:{clients}", "--internal-listen", f"127.0.0.1:{internal}"]
            arguments += ["--kv-events-endpoint", f"tcp://127.0.0.1:{events}", "--kv-events-topic", ""]
            arguments += ["--kv-events-replay-endpoint", f"tcp://127.0.0.1:{replay}"]
            processes.append(subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            hosts.append((f"http://127.0.0.1:{clients}", f"http://127.0.0.1:{internal}", events, replay))
        for host in hosts:
            wait(host[0] + "/health", "a host")
        port = free_port()
        router = f"http://127.0.0.1:{port}"
        arguments = [sys.executable, "-m", MODULE, "--host", "127.0.0.1", "--port", str(port), "--policy", POLICY]
        arguments += ["--prometheus-port", str(free_port()), "--log-level", "debug"]
        arguments += ["--worker-urls", *(clients for clients, *_ in hosts)]
        if POLICY == "kv_aware":
            for clients, _, events, replay in hosts:
                arguments += ["--kv-event-source", f"{clients}=tcp://127.0.0.1:{events}"]
                arguments += ["--kv-event-replay-source", f"{clients}=tcp://127.0.0.1:{replay}"]
            arguments += ["--kv-event-block-size", "16", "--kv-event-model", "m"]
        log = os.path.join(folder, "router.log")
        with open(log, "w") as output:
            processes.append(subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT))
        print(f"{ROUTER} {POLICY}: ready after {wait(router + '/readiness', 'the router'):.1f} s")
        answered = 0
        for number in range(CHATS):
            text = f"Document {number % DOCUMENTS}. " + "The harbour master keeps the keys of the boat house. " * 6
            chat = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": f"{text} Question {number}?"}]}
            status, body = ask(router + "/v1/chat/completions", chat)
            answered += status == 200 and bool(json.loads(body)["choices"])
            # A batch of events is on its way.
            time.sleep(0.05)
        print(f"  {answered} of {CHATS} chats answered")
        response = {"model": "m", "max_output_tokens": 4, "input": "Hello"}
        message = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
        print(f"  /v1/responses {ask(router + '/v1/responses', response)[0]}, /v1/messages {ask(router + '/v1/messages', message)[0]}")
        print(f"  loads {ask(router + '/get_loads')[1]}")
        prompt = cached = 0
        for _, internal, _, _ in hosts:
            metrics = ask(internal + "/metrics")[1]
            number = lambda name: int(re.search(rf"^{name} (\d+)$", metrics, re.M).group(1))
            prompt, cached = prompt + number("foreword_prompt_tokens_total"), cached + number("foreword_cached_tokens_total")
            routes = re.findall(r'^foreword_http_requests_total\{route="([^"]+)",status="(\d+)"\} (\d+)$', metrics, re.M)
            print("  host:", ", ".join(f"{route} {status} {count}x" for route, status, count in sorted(routes)))
        print(f"  cached {cached} of {prompt} prompt tokens")
        with open(log) as lines:
            plain = re.sub(r"\x1b\[[0-9;]*m", "", lines.read())
        credited = collections.Counter(re.findall(r"credited_prefix_tokens=(\d+)", plain))
        if credited:
            print("  tokens believed to be held:", ", ".join(f"{tokens} ({times}x)" for tokens, times in credited.items()))
        assert answered == CHATS
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


with tempfile.TemporaryDirectory() as folder:
    main(folder)
