"""Subscribes to KV events and prints each batch as a line of JSON, decoded by msgspec with the fields of vLLM's events.

Usage: kv_subscriber.py PUB_ADDRESS ROUTER_ADDRESS map|array
A number on standard input asks for the batches from that number on; "end" follows them.
"""

import json
import sys

import msgspec
import zmq

as_array = sys.argv[3] == "array"


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list["BlockStored | BlockRemoved | AllBlocksCleared"]
    data_parallel_rank: int | None = None


class KvEvent(msgspec.Struct, array_like=as_array, omit_defaults=True, tag=True):
    pass


class BlockStored(KvEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple | None] | None = None


class BlockRemoved(KvEvent):
    block_hashes: list[bytes | int]
    medium: str | None


class AllBlocksCleared(KvEvent):
    pass


def say(value):
    print(json.dumps(value), flush=True)


def tell(number, payload, topic="kv-events"):
    batch = decoder.decode(payload)
    assert batch.ts > 1_700_000_000, batch.ts
    events = [{"type": type(event).__name__, **msgspec.structs.asdict(event)} for event in batch.events]
    say({"topic": topic, "number": int.from_bytes(number, "big"), "rank": batch.data_parallel_rank, "events": events})


decoder = msgspec.msgpack.Decoder(Batch)
context = zmq.Context()
events = context.socket(zmq.SUB)
events.connect(f"tcp://{sys.argv[1]}")
events.setsockopt_string(zmq.SUBSCRIBE, "kv-events")
replay = context.socket(zmq.DEALER)
replay.connect(f"tcp://{sys.argv[2]}")
poller = zmq.Poller()
poller.register(events, zmq.POLLIN)
poller.register(sys.stdin.fileno(), zmq.POLLIN)
while True:
    ready = dict(poller.poll())
    if events in ready:
        topic, number, payload = events.recv_multipart()
        tell(number, payload, topic.decode())
    if sys.stdin.fileno() in ready:
        line = sys.stdin.readline()
        if not line:
            break
        replay.send_multipart([b"", int(line).to_bytes(8, "big")])
        while True:
            empty, number, payload = replay.recv_multipart()
            assert empty == b""
            if int.from_bytes(number, "big", signed=True) == -1:
                say("end")
                break
            tell(number, payload)
