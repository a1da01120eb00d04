"""Has a host run batches with the official client of OpenAI, and checks what it makes of them.

    batches.py URL MODEL

The model says TEXT when its prompt contains say(TEXT). The last line that is printed says how many checks passed.
"""

import io
import json
import sys
import time

import openai

URL, MODEL = sys.argv[1:]
CHECKS = 0


def check(found, expected):
    global CHECKS
    assert found == expected, f"{found!r}, not {expected!r}"
    CHECKS += 1


def line(name, content):
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"


def ended(client, batch):
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.01)
        batch = client.batches.retrieve(batch.id)
    return batch


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error.code
    raise AssertionError("it was not refused")


def main():
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="sk-test")
    other = openai.OpenAI(base_url=f"{URL}/v1", api_key="sk-other")

    text = "".join(line(f"q{number}", f"say(answer {number})") for number in range(5))
    text += line("wrong", "x").replace(MODEL, "another")
    file = client.files.create(file=("in.jsonl", io.BytesIO(text.encode())), purpose="batch")
    check((file.object, file.purpose, file.filename), ("file", "batch", "in.jsonl"))
    check(file.bytes, len(text))
    check(client.files.retrieve(file.id), file)
    check([found.id for found in client.files.list()], [file.id])
    check(client.files.content(file.id).text, text)
    check([found.id for found in other.files.list()], [])
    check(refused(openai.NotFoundError, lambda: other.files.content(file.id)), "file_not_found")

    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"job": "night"},
    )
    check((batch.object, batch.input_file_id, batch.metadata), ("batch", file.id, {"job": "night"}))
    batch = ended(client, batch)
    check(batch.status, "completed")
    counts = batch.request_counts
    check((counts.total, counts.completed, counts.failed), (6, 5, 1))
    lines = [json.loads(found) for found in client.files.content(batch.output_file_id).text.splitlines()]
    answers = {found["custom_id"]: found["response"]["body"]["choices"][0]["message"]["content"] for found in lines}
    check(answers, {f"q{number}": f"answer {number}" for number in range(5)})
    errors = [json.loads(found) for found in client.files.content(batch.error_file_id).iter_lines()]
    check([(found["custom_id"], found["response"]["status_code"]) for found in errors], [("wrong", 404)])
    check([found.id for found in client.batches.list(limit=10)], [batch.id])
    check(refused(openai.NotFoundError, lambda: other.batches.retrieve(batch.id)), "batch_not_found")
    check(refused(openai.BadRequestError, lambda: client.batches.cancel(batch.id)), "invalid_value")

    bad = client.files.create(file=("bad.jsonl", b"{}\n"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
    check(bad.expires_at - bad.created_at, 3600)
    failed = client.batches.create(input_file_id=bad.id, endpoint="/v1/chat/completions", completion_window="24h")
    failed = ended(client, failed)
    check((failed.status, failed.errors.data[0].line), ("failed", 1))
    check(failed.output_file_id, None)
    check(client.files.delete(bad.id).deleted, True)
    # All pages of a list, one object at a time.
    check(len([found.id for found in client.batches.list(limit=1)]), 2)
    check(len([found.id for found in client.files.list(limit=1)]), 3)
    print(f"{CHECKS} checks")


main()
