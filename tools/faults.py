#!/usr/bin/env python3
"""Makes docs/FAULTS.md of what runs of the fault suite recorded: tools/faults.py build/faults.json… >docs/FAULTS.md"""

import ast
import json
import pathlib
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[1]
HEAD = """\
# What was broken, and what happened

Made by `tools/faults.py` from runs of the fault suite (`./dev test fault`, `./dev test chaos`): do not edit. Every line is a
test against a real PostgreSQL and a real Kafka; one judge compares what was committed with what the topics hold.

| fault | how it was injected | what was promised | what was seen |
|---|---|---|---|
"""


def declared():
    """(file::function, name) of every test with @fault: what the page must show."""
    found = set()
    for path in sorted((SOURCE / "tests/fault").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and getattr(mark.func, "id", None) == "fault":
                    found.add((f"fault/{path.name}::{node.name}", mark.args[0].value))
    return found


def cell(text):
    return " ".join(text.split()).replace("|", "\\|")


def line(entry):
    seen = entry["seen"] or "as promised"
    if entry["outcome"] != "passed":
        seen = f"**{entry['outcome']}** {entry['seen']}"
    return "| " + " | ".join(map(cell, (entry["name"], entry["how"], entry["promise"], seen))) + " |\n"


def page(entries):
    """A line for each outcome; what is no longer declared is left out, what says the same stands once."""
    known = declared()
    entries = [entry for entry in entries if (entry["test"].partition("[")[0], entry["name"]) in known]
    entries.sort(key=lambda entry: (entry["test"].split("::")[0], entry["name"]))
    return HEAD + "".join(dict.fromkeys(map(line, entries)))


if __name__ == "__main__":
    sys.stdout.write(page([entry for path in sys.argv[1:] for entry in json.loads(pathlib.Path(path).read_text())]))
