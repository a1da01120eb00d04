"""A server under test: asks it, and reads the processor time that it has used."""

import http.client
import json
import pathlib
import subprocess
import sys
import time


class Server:
    """A server under test; `process` is None where the user started it."""

    def __init__(self, name, address, process=None):
        self.name, self.address, self.process = name, address, process

    def post(self, path, body):
        connection = http.client.HTTPConnection(self.address, timeout=600)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        return response.status, json.loads(text)

    def ask(self, tokens, **more):
        """Prompt tokens, and those from the cache. `more` are further members of the request."""
        body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "ignore_eos": True, **more}
        status, answer = self.post("/v1/completions", body)
        if status != 200:
            raise RuntimeError(f"{self.name} answered {status}: {json.dumps(answer)[:300]}")
        usage = answer["usage"]
        details = usage.get("prompt_tokens_details") or {}
        return usage["prompt_tokens"], details.get("cached_tokens") or 0

    def processor_time(self):
        """Seconds that the process's threads have run."""
        folder = pathlib.Path(f"/proc/{self.process.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0]) for task in folder.iterdir()) / 1e9

    def wait(self):
        for _ in range(600):
            if self.process and self.process.poll() is not None:
                sys.exit(f"{self.name} ended with {self.process.returncode}")
            try:
                self.ask([300])
                return
            except (OSError, RuntimeError, http.client.HTTPException, ValueError):
                time.sleep(0.2)
        sys.exit(f"{self.name} does not answer at {self.address}")


def start_foreword(program, model, threads, *more):
    """Starts `foreword serve` on a free port of the CPU, with further arguments."""
    command = [program, "serve", "--model", model, "--device", "cpu", "--threads", str(threads), *more]
    command += ["--listen", "127.0.0.1:0", "--internal-listen", "none"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    port = process.stdout.readline().rsplit(":", 1)[1].strip()
    return Server("foreword", f"127.0.0.1:{port}", process)
