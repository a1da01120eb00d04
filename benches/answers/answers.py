#!/usr/bin/env python3
"""Plays recorded tool sessions through gateways, with a client that drops reasoning and writes tool calls' arguments anew.

    answers.py template qwen3/chat_template.jinja        writes a chat template that renders reasoning within a turn, as Qwen 3's;
                                                         with --always that of all turns
    answers.py play --sessions bfcl.jsonl --engine http://127.0.0.1:8000 --listen 127.0.0.1:8700 \\
        --arm off=http://127.0.0.1:10055 --arm on=http://127.0.0.1:10056 --take 100

The gateways' cluster is --listen: there this script stands in for the model. It asks the engine for one token, to learn how much of the
prompt is cached, answers with the recorded message and a thought of its own, and lets the engine compute that answer as its template renders it
(a model's own tokens may differ). Each arm has a salt of its own, so that the arms share no cache. Sessions are lines of {"messages": [...]} in OpenAI's form;
thoughts and the order of arguments are made here, since what was recorded has none. Only the standard library is needed.
"""

import argparse
import ast
import http.client
import http.server
import json
import os
import random
import threading
import urllib.parse

WORDS = "first look at the folder then find which file holds that value and check whether it changed before going on".split()

TEMPLATE = """{%- set last = namespace(user=0) -%}
{%- for message in messages if message.role == 'user' -%}{%- set last.user = loop.index -%}{%- endfor -%}
{%- set seen = namespace(users=0) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set seen.users = seen.users + 1 -%}{%- endif -%}
{{- '<|im_start|>' ~ message.role ~ '\\n' -}}
{%- set thought = message.reasoning or message.reasoning_content -%}
{%- if message.role == 'assistant' and thought and seen.users == last.user -%}
{{- '<think>\\n' ~ thought ~ '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- message.content or '' -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>{"name": "' ~ call.function.name ~ '", "arguments": ' -}}
{%- if call.function.arguments is string -%}{{- call.function.arguments -}}{%- else -%}{{- call.function.arguments | tojson -}}{%- endif -%}
{{- '}</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def post(url, body, headers=()):
    where = urllib.parse.urlsplit(url)
    client = http.client.HTTPConnection(where.hostname, where.port, timeout=600)
    client.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json", **dict(headers)})
    response = client.getresponse()
    text = response.read()
    if response.status != 200:
        raise SystemExit(f"{url}: {response.status} {text[:300]!r}")
    return json.loads(text)


def arguments(text):
    """The arguments of a recorded call. BFCL's are Python: {"call": "cd(folder='a')"}."""
    value = json.loads(text)
    if list(value) != ["call"]:
        return value
    call = ast.parse(value["call"], mode="eval").body
    named = {f"argument{at}": ast.literal_eval(it) for at, it in enumerate(call.args)}
    return named | {it.arg: ast.literal_eval(it.value) for it in call.keywords}


def written(message, draw):
    """A recorded answer as the model writes it: with a thought, and the arguments in an order and with spaces of its own."""
    message = json.loads(json.dumps(message))
    message["reasoning"] = " ".join(draw.choice(WORDS) for _ in range(48))
    for call in message.get("tool_calls") or []:
        values = list(arguments(call["function"]["arguments"]).items())
        draw.shuffle(values)
        call["function"]["arguments"] = json.dumps(dict(values), ensure_ascii=False)
    return message


def shown(message, drops):
    """The answer as the client sends it back."""
    message = json.loads(json.dumps(message))
    if "reasoning" in drops:
        message.pop("reasoning", None)
    if "arguments" in drops:
        for call in message.get("tool_calls") or []:
            values = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(values, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return message


class Model(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine = None
    # What the model says next, and what the last request found.
    answer = None
    usage = None

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        body["max_tokens"] = 1
        Model.usage = post(self.engine, body)["usage"]
        # The engine computes the answer: the prompt with it, up to the words of the next turn.
        body["messages"] = body["messages"] + [Model.answer]
        body["add_generation_prompt"] = False
        post(self.engine, body)
        choice = {"index": 0, "message": Model.answer, "finish_reason": "tool_calls" if Model.answer.get("tool_calls") else "stop"}
        text = json.dumps({"id": "a", "object": "chat.completion", "choices": [choice], "usage": Model.usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def play(session, url, options, name, drops):
    """Returns the prompt tokens and the cached ones of each request that continues the session."""
    counts = []
    draw = random.Random(session["session"])
    messages = [{"role": "system", "content": f"You call tools. Session {session['session']}."}]
    for message in session["messages"]:
        if message["role"] != "assistant":
            messages.append(message)
            continue
        Model.answer = written(message, draw)
        body = {"model": options.model, "messages": messages, "cache_salt": f"{name} {os.getpid()}", "temperature": 0}
        answer = post(url, body)["choices"][0]["message"]
        usage = Model.usage
        counts.append((usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0))
        messages.append(shown(answer, drops))
    return counts[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("template")
    writing.add_argument("file")
    writing.add_argument("--always", action="store_true")
    playing = commands.add_parser("play")
    playing.add_argument("--sessions", required=True)
    playing.add_argument("--engine", required=True)
    playing.add_argument("--listen", required=True)
    playing.add_argument("--arm", action="append", required=True)
    playing.add_argument("--model", default="tiny")
    playing.add_argument("--take", type=int, default=100)
    playing.add_argument("--drops", default="reasoning,arguments")
    options = parser.parse_args()
    if options.command == "template":
        with open(options.file, "w") as file:
            file.write(TEMPLATE.replace(" and seen.users == last.user", "") if options.always else TEMPLATE)
        return
    Model.engine = options.engine
    host, port = options.listen.rsplit(":", 1)
    server = http.server.ThreadingHTTPServer((host, int(port)), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with open(options.sessions) as file:
        sessions = [json.loads(line) for line in file][: options.take]
    arms = [arm.split("=", 1) for arm in options.arm] + [["keeps everything", options.arm[0].split("=", 1)[1]]]
    for name, url in arms:
        drops = () if name == "keeps everything" else options.drops.split(",")
        counts = [count for session in sessions for count in play(session, url, options, name, drops)]
        prompt, cached = (sum(count[at] for count in counts) for at in (0, 1))
        print(f"{name}: {len(counts)} requests, {prompt} prompt tokens, {cached} cached ({100 * cached / prompt:.1f} %), {(prompt - cached) / len(counts):.1f} computed a request")


if __name__ == "__main__":
    main()
