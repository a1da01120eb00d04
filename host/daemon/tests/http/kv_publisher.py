"""Publishes KV events as vLLM does: its types (msgspec), its sockets (pyzmq), its replies to those who missed some.

Usage: kv_publisher.py map|array int|bytes [PORT PORT]
First line on standard output: the ports of its PUB and ROUTER sockets. Each line of JSON on standard input is a batch:
a list of [type, {field: value}]. A line "-" in front makes it one that is only kept, not sent.
"""

import json
import sys
import time
from collections import deque

import msgspec
import zmq

as_array, as_bytes = sys.argv[1] == "array", sys.argv[2] == "bytes"


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, array_like=as_array, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple | None] | None = None
    group_idx: int | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


def hashed(block):
    return block.to_bytes(32, "big") if as_bytes and block is not None else block


def event(kind, fields):
    if "block_hashes" in fields:
        fields["block_hashes"] = [hashed(block) for block in fields["block_hashes"]]
    if "parent_block_hash" in fields:
        fields["parent_block_hash"] = hashed(fields["parent_block_hash"])
    if kind == "BlockStored":
        fields = {"lora_id": None, "medium": "GPU", "lora_name": None, "group_idx": 0, **fields}
    if kind == "BlockRemoved":
        fields = {"medium": "GPU", "group_idx": 0, **fields}
    return globals()[kind](**fields)


context = zmq.Context()
publish, replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
ports = sys.argv[3:] or ["*", "*"]
for socket, port in zip((publish, replay), ports):
    socket.bind(f"tcp://127.0.0.1:{port}")
ports = [socket.last_endpoint.decode().rsplit(":", 1)[1] for socket in (publish, replay)]
print(*ports, flush=True)
kept = deque(maxlen=10_000)
encoder = msgspec.msgpack.Encoder()
poller = zmq.Poller()
poller.register(replay, zmq.POLLIN)
# Unbuffered, or a second line could wait where no poll sees it.
lines = open(0, "rb", buffering=0)
poller.register(lines.fileno(), zmq.POLLIN)
number = 0
while True:
    ready = dict(poller.poll())
    if replay in ready:
        client, _, start = replay.recv_multipart()
        for other, payload in kept:
            if other >= int.from_bytes(start, "big"):
                replay.send_multipart((client, b"", b"kv-events", other.to_bytes(8, "big"), payload))
        replay.send_multipart((client, b"", b"", (-1).to_bytes(8, "big", signed=True), b""))
    if lines.fileno() in ready:
        line = lines.readline().decode()
        if not line:
            break
        events = [event(kind, fields) for kind, fields in json.loads(line.removeprefix("-"))]
        payload = encoder.encode(EventBatch(ts=time.time(), events=events, data_parallel_rank=0))
        if not line.startswith("-"):
            publish.send_multipart((b"kv-events", number.to_bytes(8, "big"), payload))
        kept.append((number, payload))
        number += 1
