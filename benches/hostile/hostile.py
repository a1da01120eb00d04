"""Plain chats beside clients that hold what they do not use, before and during.

    cargo build --release -p foreword
    python3 benches/hostile/hostile.py [--binary target/release/foreword] [--model host/engine/fixtures/qwen2] [--grammars N]

Starts `foreword serve`, asks plain chats one after another, and then the same while so many connections hold half a
head, so many hold half a body of which all but one byte was sent, and so many requests with a hostile grammar run. What
the server closes is opened again at once. Says how long chats took, how many failed, what the process held, and exits
with 1 when one failed or the second p95 is over twice the first. Needs Python 3.10 and nothing else.
"""

import argparse
import http.client
import json
import resource
import selectors
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

PATH = "/v1/chat/completions"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/foreword")
    parser.add_argument("--model", default="host/engine/fixtures/qwen2")
    parser.add_argument("--chats", type=int, default=200, help="in each of the two parts")
    parser.add_argument("--half-heads", type=int, default=250)
    parser.add_argument("--half-bodies", type=int, default=264)
    parser.add_argument("--body-bytes", type=int, default=1 << 20, help="of each half body")
    parser.add_argument("--grammars", type=int, default=0, help="requests with a hostile grammar at once")
    parser.add_argument("--schema", help="file with the hostile JSON schema [default: a large multipleOf]")
    parser.add_argument("serve", nargs="*", help="more arguments of `foreword serve`, behind --")
    return parser.parse_args()


class Server:
    def __init__(self, options):
        command = [options.binary, "serve", "--model", options.model, "--name", "m", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command + options.serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = self.line("listening on ")
        self.internal = self.line("probes, metrics and KV feed on ")

    def line(self, words):
        line = self.process.stdout.readline().strip()
        if not line.startswith(words):
            sys.exit(f"expected `{words}…`, got {line!r}")
        url = urlsplit(line.removeprefix(words))
        return url.hostname, url.port

    def kibibytes(self, name):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(name))

    def get(self, path):
        connection = http.client.HTTPConnection(*self.internal, timeout=10)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def chats(server, count):
    """Seconds of each chat that was answered, and how many were not."""
    seconds, failed = [], 0
    for number in range(count):
        documents = "".join(
            f'<document id="{number}-{at}">What {number} says of {at} fills some lines. {"And more. " * 12}</document>'
            for at in range(4)
        )
        body = json.dumps({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": documents + "Why?"}]})
        start = time.perf_counter()
        try:
            connection = http.client.HTTPConnection(*server.address, timeout=60)
            connection.request("POST", PATH, body, {"content-type": "application/json"})
            status = connection.getresponse().status
            connection.close()
        except OSError:
            status = 0
        if status == 200:
            seconds.append(time.perf_counter() - start)
        else:
            failed += 1
    return seconds, failed


class Holders(threading.Thread):
    """Keeps connections open that never say all they began to say; opens those anew that are closed."""

    def __init__(self, server, options):
        super().__init__(daemon=True)
        self.server, self.options = server, options
        self.ends = threading.Event()
        self.ready = threading.Event()
        self.opened = 0
        head = f"POST {PATH} HTTP/1.1\r\nhost: hostile\r\ncontent-type: application/json\r\n"
        announced = f"content-length: {options.body_bytes}\r\n\r\n"
        self.half_head = (head + "x-half: ").encode()
        self.half_body = (head + announced).encode() + b" " * (options.body_bytes - 1)

    def run(self):
        selector = selectors.DefaultSelector()
        waiting = [self.half_head] * self.options.half_heads + [self.half_body] * self.options.half_bodies
        while not self.ends.is_set():
            # A few at a time, so that this script is no busier than it must be.
            for text in waiting[:32]:
                connection = socket.create_connection(self.server.address, timeout=10)
                connection.setblocking(False)
                state = {"left": memoryview(text), "text": text}
                selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, state)
                self.opened += 1
            del waiting[:32]
            if not waiting:
                self.ready.set()
            for key, events in selector.select(timeout=0.05):
                connection, state = key.fileobj, key.data
                try:
                    if events & selectors.EVENT_READ and not connection.recv(65536):
                        raise ConnectionResetError
                    if events & selectors.EVENT_WRITE and state["left"]:
                        state["left"] = state["left"][connection.send(state["left"]):]
                    if not state["left"]:
                        selector.modify(connection, selectors.EVENT_READ, state)
                except BlockingIOError:
                    pass
                except OSError:
                    selector.unregister(connection)
                    connection.close()
                    waiting.append(state["text"])


def grammars(server, options, ends):
    schema = {"type": "integer", "multipleOf": 9999991}
    if options.schema:
        with open(options.schema) as file:
            schema = json.load(file)
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Why?"}], "response_format": form})

    def ask():
        while not ends.is_set():
            try:
                connection = http.client.HTTPConnection(*server.address, timeout=600)
                connection.request("POST", PATH, body, {"content-type": "application/json"})
                connection.getresponse().read()
            except OSError:
                time.sleep(0.1)

    for _ in range(options.grammars):
        threading.Thread(target=ask, daemon=True).start()


def quantile(seconds, share):
    return sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))] if seconds else float("inf")


def row(name, seconds, failed, server):
    p50, p95 = quantile(seconds, 0.5) * 1000, quantile(seconds, 0.95) * 1000
    memory = server.kibibytes("VmRSS") / 1024
    print(f"| {name} | {len(seconds)} | {failed} | {p50:.1f} ms | {p95:.1f} ms | {memory:.0f} MiB |", flush=True)
    return p95


def main():
    options = arguments()
    # For our own connections.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = Server(options)
    try:
        chats(server, 20)
        print("| | answered | failed | p50 | p95 | resident |\n| --- | ---: | ---: | ---: | ---: | ---: |")
        before = row("undisturbed", *chats(server, options.chats), server)
        holders = Holders(server, options)
        holders.start()
        grammars(server, options, holders.ends)
        holders.ready.wait(60)
        seconds, failed = chats(server, options.chats)
        during = row("disturbed", seconds, failed, server)
        holders.ends.set()
        status, ready = server.get("/readyz")
        print(f"\nhalf connections opened: {holders.opened}; peak resident {server.kibibytes('VmHWM') / 1024:.0f} MiB")
        print(f"/readyz at the end: {status} {ready}")
        for line in server.get("/metrics")[1].splitlines():
            if line.startswith(("foreword_connections", "foreword_accept")):
                print(line)
        holds = failed == 0 and during <= 2 * before
        print(f"p95 is {during / before:.2f} times the undisturbed: {'holds' if holds else 'DOES NOT HOLD'}")
        return 0 if holds else 1
    finally:
        server.process.kill()
        server.process.wait()


if __name__ == "__main__":
    sys.exit(main())
