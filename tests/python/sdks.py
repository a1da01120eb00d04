"""Asks a host everything that the official SDKs of OpenAI and Anthropic can ask of it, and checks what they make of it.

    sdks.py URL MODEL

The model says TEXT when its prompt contains say(TEXT). The last line that is printed says how many checks passed.
"""

import json
import sys

import anthropic
import openai
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]
KEY = "sk-test"
CHECKS = 0


def check(found, expected):
    global CHECKS
    assert found == expected, f"{found!r}, not {expected!r}"
    CHECKS += 1


class Person(BaseModel):
    name: str
    age: int


class Weather(BaseModel):
    city: str


ADA = '{"name": "Ada", "age": 36}'
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}


def say(text):
    return [{"role": "user", "content": f"say({text})"}]


def chats(client):
    answer = client.chat.completions.create(model=MODEL, messages=say("Guten Tag"))
    check(answer.choices[0].message.content, "Guten Tag")
    parsed = client.beta.chat.completions.parse(model=MODEL, messages=say(ADA), response_format=Person)
    check(parsed.choices[0].message.parsed, Person(name="Ada", age=36))
    tool = openai.pydantic_function_tool(Weather, name="weather")
    called = client.chat.completions.parse(model=MODEL, messages=say(CALL), tools=[tool])
    check(called.choices[0].message.tool_calls[0].function.parsed_arguments, Weather(city="Oslo"))
    with client.chat.completions.stream(model=MODEL, messages=say("abc")) as stream:
        for _ in stream:
            pass
        check(stream.get_final_completion().choices[0].message.content, "abc")


def responses(client):
    response = client.responses.create(model=MODEL, input="say(Guten Tag)", instructions="Be brief.")
    check((response.output_text, response.status), ("Guten Tag", "completed"))
    again = client.responses.create(model=MODEL, input="say(Guten Tag)", instructions="Be brief.")
    check(again.usage.input_tokens_details.cached_tokens, again.usage.input_tokens - 1)
    parsed = client.responses.parse(model=MODEL, input=say(ADA), text_format=Person)
    check(parsed.output_parsed, Person(name="Ada", age=36))
    tools = [{"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}]
    called = client.responses.create(model=MODEL, input=say(CALL), tools=tools)
    call = called.output[0]
    check((call.type, call.name, json.loads(call.arguments)), ("function_call", "weather", {"city": "Oslo"}))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "say(Rain)"}
    after = client.responses.create(model=MODEL, input=[result], previous_response_id=called.id, tools=tools)
    check(after.output_text, "Rain")
    check(client.responses.retrieve(after.id), after)
    with client.responses.stream(model=MODEL, input="say(abc)") as stream:
        kinds = [event.type for event in stream]
        check(stream.get_final_response().output_text, "abc")
    check((kinds[0], kinds.count("response.output_text.delta"), kinds[-1]), ("response.created", 3, "response.completed"))
    with client.responses.stream(model=MODEL, input=say(CALL), tools=tools) as stream:
        for _ in stream:
            pass
        check(stream.get_final_response().output[0].arguments, '{"city": "Oslo"}')
    try:
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_0")
    except openai.NotFoundError as error:
        check(error.code, "response_not_found")


def messages(client):
    message = client.messages.create(model=MODEL, max_tokens=50, messages=say("Guten Tag"))
    check((message.content[0].text, message.stop_reason), ("Guten Tag", "end_turn"))
    with client.messages.stream(model=MODEL, max_tokens=50, messages=say("Guten Tag")) as stream:
        check("".join(stream.text_stream), "Guten Tag")
        usage = stream.get_final_message().usage
    check((usage.input_tokens, usage.output_tokens), (1, 9))
    check(usage.cache_read_input_tokens, message.usage.input_tokens + message.usage.cache_read_input_tokens - 1)
    tools = [{"name": "weather", "input_schema": PARAMETERS}]
    with client.messages.stream(model=MODEL, max_tokens=200, messages=say(CALL), tools=tools) as stream:
        called = stream.get_final_message()
    call = called.content[0]
    check((call.type, call.input, called.stop_reason), ("tool_use", {"city": "Oslo"}, "tool_use"))
    history = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": called.content}]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "say(Rain)"}]}
    history.append({"role": "user", "content": [result]})
    check(client.messages.create(model=MODEL, max_tokens=50, messages=history, tools=tools).content[0].text, "Rain")
    document = {"type": "document", "title": "a", "source": {"type": "text", "media_type": "text/plain", "data": "b"}}
    asked = [{"role": "user", "content": [document, {"type": "text", "text": "say(c)"}]}]
    counted = client.messages.count_tokens(model=MODEL, messages=asked)
    usage = client.messages.create(model=MODEL, max_tokens=5, messages=asked).usage
    check(usage.input_tokens + usage.cache_read_input_tokens, counted.input_tokens)
    parsed = client.messages.parse(model=MODEL, max_tokens=50, messages=say(ADA), output_format=Person)
    check(parsed.parsed_output, Person(name="Ada", age=36))


chats(openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0))
responses(openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0))
messages(anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0))
print(CHECKS, "checks")
