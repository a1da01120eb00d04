"""An engine as vLLM and SGLang are built: Starlette's router behind uvicorn. It computes nothing and writes down what came.

    engine.py RECORD

Each request becomes a line of JSON in the file RECORD before it is answered: which handler took it (null: none), the method,
the path as the router saw it, and the body in full, whoever reads it.
"""

import asyncio
import json
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route


async def chat(request):
    await request.body()
    return JSONResponse({"ok": True})


async def messages(request):
    await request.body()
    return JSONResponse({"ok": True})


async def completions(request):
    await request.body()
    return JSONResponse({"ok": True})


async def models(request):
    return JSONResponse({"data": []})


ROUTER = Starlette(
    routes=[
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/responses", completions, methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/health", models, methods=["GET"]),
    ]
)


def recording(record):
    async def app(scope, receive, send):
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        answer = []

        async def replay():
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        async def keep(message):
            answer.append(message)

        await ROUTER(scope, replay, keep)
        handler = getattr(scope.get("endpoint"), "__name__", None)
        line = {
            "handler": handler,
            "method": scope["method"],
            "path": scope["path"],
            "raw_path": scope["raw_path"].decode("latin-1"),
            "body": body.decode("latin-1"),
        }
        # The answer waits for the record.
        record.write(json.dumps(line) + "\n")
        record.flush()
        for message in answer:
            await send(message)

    return app


async def main():
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"listening on 127.0.0.1:{listening.getsockname()[1]}", flush=True)
    with open(sys.argv[1], "w", encoding="utf-8") as record:
        config = uvicorn.Config(recording(record), log_level="warning", lifespan="off", ws="none", access_log=False)
        await uvicorn.Server(config).serve(sockets=[listening])


asyncio.run(main())
