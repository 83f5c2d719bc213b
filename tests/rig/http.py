"""The daemon's window: pages, and metrics as a dictionary."""

import json
import re
import urllib.error
import urllib.request

from . import process


class Window:
    def __init__(self, port, token=None):
        self.port, self.token = port, token
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path, method="GET", token=None, timeout=10):
        """(status, text) of a page; no answer at all is (0, reason)."""
        request = urllib.request.Request(self.url + path, method=method)
        if token or self.token:
            request.add_header("Authorization", f"Bearer {token or self.token}")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()
        except OSError as failure:
            return 0, str(failure)

    def status(self):
        code, text = self.get("/status")
        assert code == 200, (code, text)
        return json.loads(text)

    def metrics(self):
        """{'outboxd_events_total{result="sent"}': 900.0, …}"""
        code, text = self.get("/metrics")
        assert code == 200, (code, text)
        return {name: float(value) for name, value in re.findall(r"^([^#\n]\S*) (\S+)$", text, re.M)}

    def wait_metric(self, name, value, timeout=None):
        """Until a metric has the value, or satisfies the function."""
        wanted = value if callable(value) else lambda seen: seen == value
        process.wait_until(lambda: wanted(self.metrics()[name]), lambda: f"{name} is {self.metrics()[name]}", timeout, 0.1)

    def wait(self, path, code, timeout=None):
        process.wait_until(lambda: self.get(path)[0] == code, lambda: f"{path} says {self.get(path)}", timeout, 0.05)
        return self.get(path)[1]
