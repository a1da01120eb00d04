"""Asks a running engine whether it keeps prefix caches of different `cache_salt`s apart, route by route.

    python3 tests/python/salts.py http://127.0.0.1:8000 MODEL

Each route gets one long prompt four times: with salt a, with a again, with b, and with none. An engine that honours the field
reports cached tokens for the second alone; one whose request model lacks it reports them for all after the first. The engine must
report cached tokens (vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report). Exits with 1 if a route that
`engines[].salts` has by default keeps no salts apart.
"""

import json
import sys
import urllib.error
import urllib.request
import uuid

DEFAULT = {"/v1/chat/completions", "/v1/completions", "/v1/responses"}


def bodies(model, words):
    chat = [{"role": "user", "content": words}]
    return {
        "/v1/chat/completions": {"model": model, "messages": chat, "max_tokens": 1},
        "/v1/completions": {"model": model, "prompt": words, "max_tokens": 1},
        "/v1/responses": {"model": model, "input": words, "max_output_tokens": 1},
        "/v1/messages": {"model": model, "messages": chat, "max_tokens": 1},
    }


def cached(usage):
    """Cached tokens as OpenAI's two APIs and Anthropic's name them."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return details.get("cached_tokens") or usage.get("cache_read_input_tokens") or 0


def ask(address, route, body):
    request = urllib.request.Request(
        address + route, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return cached(json.load(response).get("usage") or {})


def main(address, model):
    failed = False
    for route in bodies(model, ""):
        # No other run, and no other route, has sent these words.
        words = " ".join(f"{uuid.uuid4()} {number}" for number in range(60))
        counts = []
        try:
            for salt in ["a" * 64, "a" * 64, "b" * 64, None]:
                body = bodies(model, words)[route]
                if salt:
                    body["cache_salt"] = salt
                counts.append(ask(address, route, body))
        except urllib.error.HTTPError as error:
            print(f"{route}: status {error.code}")
            continue
        verdict = "keeps salts apart" if counts[1] > 0 and not counts[2] and not counts[3] else "keeps NO salts apart"
        if not counts[1] and not any(counts):
            verdict = "reports no cached tokens"
        failed |= route in DEFAULT and verdict == "keeps NO salts apart"
        print(f"{route}: cached tokens with a, a, b, none: {counts}: {verdict}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].rstrip("/"), sys.argv[2]))
