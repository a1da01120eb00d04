"""Sends requests over HTTP/2 as they are told, however odd, each on a connection of its own.

    http2.py ADDRESS PORT < REQUESTS

Each line of REQUESTS is a JSON list: pairs of a header's name and value, then the body, all in Latin-1. Each line that is
printed is the status of the answer, or 0 where the connection or the stream was closed without one.
"""

import concurrent.futures
import json
import socket
import sys

import h2.config
import h2.connection
import h2.events


def bytes_of(text):
    return text.encode("latin-1")


def status(address, headers, body):
    # No rule of the client's own keeps a request from the gateway.
    config = h2.config.H2Configuration(
        client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False, validate_inbound_headers=False
    )
    connection = h2.connection.H2Connection(config=config)
    with socket.create_connection(address, timeout=60) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.initiate_connection()
        connection.send_headers(1, [(bytes_of(name), bytes_of(value)) for name, value in headers])
        connection.send_data(1, bytes_of(body), end_stream=True)
        stream.sendall(connection.data_to_send())
        while received := stream.recv(65536):
            for event in connection.receive_data(received):
                if isinstance(event, h2.events.ResponseReceived):
                    return int(dict(event.headers)[b":status"])
                if isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated)):
                    return 0
            stream.sendall(connection.data_to_send())
    return 0


def main():
    address = (sys.argv[1], int(sys.argv[2]))

    def answer(line):
        *headers, body = json.loads(line)
        try:
            return status(address, headers, body)
        except ConnectionError:
            return 0

    # Envoy takes a second to close a connection on which it was sent what is no HTTP.
    with concurrent.futures.ThreadPoolExecutor(48) as pool:
        for found in pool.map(answer, sys.stdin):
            print(found)


main()
