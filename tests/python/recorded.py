"""Compares streams that OpenAI's and Anthropic's servers sent with a host's streams for requests like theirs.

    recorded.py URL MODEL

The recordings stand in tests/recorded. A recording is served again byte for byte, in pieces of several lengths, and read by
the official SDK; then the same SDK reads what the host answers. Compared are the sequence of events, the fields of each kind
of event, and their types. What the host lacks or adds stands in the tables below, with the reason; a table's line that no
longer holds fails too. The model says TEXT when its prompt contains say(TEXT). The last line that is printed says how many
checks passed.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anthropic
import openai
from anthropic._streaming import SSEDecoder as AnthropicDecoder
from openai._streaming import SSEDecoder as OpenAIDecoder

URL, MODEL = sys.argv[1:]
KEY = "sk-test"
RECORDED = Path(__file__).resolve().parent.parent / "recorded"
PIECES = [1, 7, 512, 1 << 20]
CHECKS = 0

LOCATION = '{"location":"San Francisco, CA"}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": ' + LOCATION + "}\n</tool_call>\n"
SCHEMA = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"], "additionalProperties": False}
OPENAI_TOOL = {"type": "function", "name": "get_weather", "description": "Get the weather for a location.", "parameters": SCHEMA}
ANTHROPIC_TOOL = {"name": "get_weather", "description": "Get the weather for a location.", "input_schema": SCHEMA}

# What the host lacks (-), adds (+) or has of another type (~), and why. ALL stands for the events that hold the response.
ALL = ["response.created", "response.in_progress", "response.completed"]
RESPONSES_DIFFER = {
    "- ALL: .response.frequency_penalty": "cannot be set in this API; no field of the SDK's type",
    "- ALL: .response.presence_penalty": "as frequency_penalty",
    "- ALL: .response.max_tool_calls": "bounds built-in tools, of which the host has none; optional in the SDK",
    "- ALL: .response.prompt_cache_retention": "the host keeps prompts as long as it has pages for them; optional in the SDK",
    "- ALL: .response.text.verbosity": "the host's models know no verbosity; optional in the SDK",
    "- ALL: .response.tools[].strict": "tools come back as the request has them, which does not say it; optional in the SDK",
    "- response.created: .response.completed_at": "a response has it once it is complete; optional in the SDK",
    "- response.in_progress: .response.completed_at": "as in response.created",
    "~ ALL: .response.reasoning.effort is null, not string": "the recorded request asked for reasoning, ours does not",
    "~ ALL: .response.reasoning.summary is null, not string": "as reasoning.effort",
    "- response.output_text.delta: .obfuscation": "padding that hides the lengths of tokens, which a client may switch off",
    "- response.function_call_arguments.delta: .obfuscation": "as in response.output_text.delta",
    "+ response.function_call_arguments.done: .name": "the function's name, for clients that read this event alone; the SDK keeps it",
    "+ response.completed: .response.usage.input_tokens_details.cache_write_tokens": "required by today's SDK; the recording is older",
}
MESSAGES_DIFFER = {
    "- message_start: .message.usage.cache_creation": "splits written tokens by lifetime, and the host has one; optional in the SDK",
    "- message_start: .message.usage.cache_creation.ephemeral_5m_input_tokens": "as cache_creation",
    "- message_start: .message.usage.cache_creation.ephemeral_1h_input_tokens": "as cache_creation",
    "- message_start: .message.usage.inference_geo": "where Anthropic computes; optional in the SDK",
    "- message_start: .message.usage.service_tier": "what Anthropic charges; optional in the SDK",
    "- content_block_start tool_use: .content_block.caller": "tells calls of the model from those of code that it runs; optional in the SDK",
    "- content_block_start tool_use: .content_block.caller.type": "as caller",
}


def check(found, expected):
    global CHECKS
    assert found == expected, f"{found!r}, not {expected!r}"
    CHECKS += 1


class Replay(BaseHTTPRequestHandler):
    """Answers any request with a recording: /PIECE/NAME/..., in pieces of PIECE bytes."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        _, piece, name = self.path.split("/")[:3]
        data = (RECORDED / f"{name}.sse").read_bytes()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for at in range(0, len(data), int(piece)):
            part = data[at : at + int(piece)]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass


def kind_of(value):
    for kind, name in [(bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (type(None), "null")]:
        if isinstance(value, kind):
            return name
    return "list" if isinstance(value, list) else "object"


def fields(value, path=""):
    """The paths of all fields below a value, each with its type. A JSON schema and a call's arguments are the client's."""
    found = {(path, kind_of(value))}
    if isinstance(value, dict) and path.rsplit(".", 1)[-1] not in ("parameters", "metadata"):
        for name, inner in value.items():
            found |= fields(inner, f"{path}.{name}")
    if isinstance(value, list):
        for inner in value:
            found |= fields(inner, f"{path}[]")
    return found


def shape(events):
    """The fields of each kind of event; parts of different types are told apart."""
    shapes = {}
    for event in events:
        kind = event["type"]
        for part in ("item", "content_block", "delta"):
            if isinstance(event.get(part), dict):
                kind += f" {event[part].get('type', '')}".rstrip()
        shapes[kind] = shapes.get(kind, set()) | fields(event)
    return shapes


def differences(recorded, ours):
    """What the recording has and we have not (-), what we have and it has not (+)."""
    recorded, ours = shape(recorded), shape(ours)
    found = {f"- {kind}" for kind in recorded.keys() - ours.keys()} | {f"+ {kind}" for kind in ours.keys() - recorded.keys()}
    for kind in recorded.keys() & ours.keys():
        theirs, mine = dict_of(recorded[kind]), dict_of(ours[kind])
        for path in theirs.keys() | mine.keys():
            if path not in mine:
                found.add(f"- {kind}: {path}")
            elif path not in theirs:
                found.add(f"+ {kind}: {path}")
            elif not mine[path] <= theirs[path]:
                found.add(f"~ {kind}: {path} is {'/'.join(sorted(mine[path]))}, not {'/'.join(sorted(theirs[path]))}")
    return found


def dict_of(found):
    types = {}
    for path, kind in found:
        types.setdefault(path, set()).add(kind)
    return types


def sequence(events):
    """The kinds of events, a run of one kind once."""
    kinds = [event["type"] for event in events]
    return [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]


def expanded(table):
    return {line.replace("ALL", kind) for line in table for kind in ALL} if table is RESPONSES_DIFFER else set(table)


def compare(name, recorded, ours, explained):
    found = differences(recorded, ours)
    wrong = [f"{name}: not in the table: {line}" for line in sorted(found - explained)]
    assert not wrong, "\n".join(wrong)
    return found


replay = ThreadingHTTPServer(("127.0.0.1", 0), Replay)
threading.Thread(target=replay.serve_forever, daemon=True).start()
REPLAY = f"http://127.0.0.1:{replay.server_address[1]}"


def raw(response, decoder):
    """The events of an answer as its bytes have them, by the SDK's own decoder."""
    decoded = list(decoder().iter_bytes(response.iter_raw()))
    for event in decoded:
        check(event.event, event.json()["type"])
    return [event.json() for event in decoded]


def openai_at(url):
    return openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)


def anthropic_at(url):
    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)


def responses(client, **request):
    """A stream read thrice: by the decoder, as typed events, and as the response that the SDK makes of them."""
    with client.responses.with_streaming_response.create(model=MODEL, stream=True, **request) as response:
        events = raw(response.http_response, OpenAIDecoder)
    typed = list(client.responses.create(model=MODEL, stream=True, **request))
    check([event.type for event in typed], [event["type"] for event in events])
    check([event.sequence_number for event in typed], list(range(len(typed))))
    with client.responses.stream(model=MODEL, **request) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    check(final.status, "completed")
    return events, final


def messages(client, **request):
    """A stream read twice: by the decoder, and as the message that the SDK makes of it."""
    with client.messages.with_streaming_response.create(model=MODEL, max_tokens=200, stream=True, **request) as response:
        events = raw(response.http_response, AnthropicDecoder)
    with client.messages.stream(model=MODEL, max_tokens=200, **request) as stream:
        final = stream.get_final_message()
    return events, final


def each_piece(read, connect, name, **request):
    """Reads a recording in pieces of every length; they must all say the same."""
    readings = [read(connect(f"{REPLAY}/{piece}/{name}"), **request) for piece in PIECES]
    for events, final in readings[1:]:
        check((events, final), readings[0])
    return readings[0]


def without_reasoning(events):
    """A response's events without its reasoning item: the recorded model reasoned, ours does not."""
    kept = [event for event in events if event.get("item", {}).get("type") != "reasoning"]
    output = kept[-1]["response"]["output"]
    kept[-1]["response"]["output"] = [item for item in output if item["type"] != "reasoning"]
    return kept


def all_responses():
    tools = [OPENAI_TOOL]
    host = openai_at(f"{URL}/v1")
    text = "It’s currently **sunny** in **San Francisco, CA**."
    recorded, final = each_piece(responses, openai_at, "responses-text", input="x", tools=tools)
    ours, our_final = responses(host, input=f"say({text})", tools=tools)
    check((final.output_text, our_final.output_text), (text, text))
    check(sequence(ours), sequence(recorded))
    used = compare("responses-text", recorded, ours, expanded(RESPONSES_DIFFER))
    recorded, final = each_piece(responses, openai_at, "responses-call", input="x", tools=tools)
    ours, our_final = responses(host, input=f"say({CALL})", tools=tools)
    check((json.loads(final.output[-1].arguments), final.output[-1].type), (json.loads(LOCATION), "function_call"))
    check((json.loads(our_final.output[-1].arguments), our_final.output[-1].type), (json.loads(LOCATION), "function_call"))
    recorded = without_reasoning(recorded)
    check(sequence(ours), sequence(recorded))
    used |= compare("responses-call", recorded, ours, expanded(RESPONSES_DIFFER))
    check(used, expanded(RESPONSES_DIFFER))


def all_messages():
    tools = [ANTHROPIC_TOOL]
    host = anthropic_at(URL)
    text = "The weather in San Francisco, CA is sunny."
    asked = [{"role": "user", "content": "x"}]
    recorded, final = each_piece(messages, anthropic_at, "messages-text", messages=asked)
    ours, our_final = messages(host, messages=[{"role": "user", "content": f"say({text})"}])
    check((final.content[0].text, our_final.content[0].text), (text, text))
    check((final.stop_reason, our_final.stop_reason), ("end_turn", "end_turn"))
    check(sequence(ours), sequence(recorded))
    used = compare("messages-text", recorded, ours, expanded(MESSAGES_DIFFER))
    recorded, final = each_piece(messages, anthropic_at, "messages-call", messages=asked)
    ours, our_final = messages(host, messages=[{"role": "user", "content": f"say({CALL})"}], tools=tools)
    check((final.content[0].input, final.stop_reason), (json.loads(LOCATION), "tool_use"))
    check((our_final.content[0].input, our_final.stop_reason), (json.loads(LOCATION), "tool_use"))
    check(sequence(ours), sequence(recorded))
    used |= compare("messages-call", recorded, ours, expanded(MESSAGES_DIFFER))
    check(used, expanded(MESSAGES_DIFFER))


def others():
    """Streams of kinds that the host does not have; they show that what is read here is what the real server sent."""
    asked = [{"role": "user", "content": "x"}]
    _, final = each_piece(messages, anthropic_at, "messages-thinking", messages=asked)
    check([block.type for block in final.content], ["thinking", "text"])
    _, final = each_piece(messages, anthropic_at, "messages-citations", messages=asked)
    check(any(block.citations for block in final.content), True)


all_responses()
all_messages()
others()
print(CHECKS, "checks")
