"""The plans that a daemon's statements really had, by auto_explain, as the server wrote them into its log."""

import json
import re
import urllib.parse

SETTINGS = {"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0",
            "auto_explain.log_analyze": "on", "auto_explain.log_buffers": "on", "auto_explain.log_timing": "off",
            "auto_explain.log_format": "json"}
ENTRY = re.compile(r"LOG:  duration: [\d.]+ ms  plan:\n((?:\t.*\n)+)")


def explained(url):
    """The URL of a superuser, with every statement of its sessions explained."""
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    return f"{url}?options={urllib.parse.quote(options)}"


class Log:
    """What a cluster has written since this was made."""

    def __init__(self, cluster):
        self.path = cluster.log
        self.start = self.path.stat().st_size

    def of(self, text):
        """The plans of the statement with this text."""
        with open(self.path, encoding="utf-8") as log:
            log.seek(self.start)
            entries = ENTRY.findall(log.read())
        if entries and not entries[-1].endswith("\t}\n"):
            entries.pop()  # the server is still writing it
        return [entry["Plan"] for entry in map(json.loads, entries) if entry["Query Text"] == text]


def nodes(plan):
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def scans(plan, table="outbox_events"):
    return [node for node in nodes(plan) if node.get("Relation Name") == table]


def buffers(plan):
    """Pages touched, in the cache or not."""
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def faults(plan, table="outbox_events"):
    """What a plan of the way must not do: read the table otherwise than by an index and its lane, throw rows away, sort."""
    found = []
    for scan in scans(plan, table):
        what = f"{scan['Node Type']} {scan.get('Index Name', '')}"
        if scan["Node Type"] not in ("Index Scan", "Index Only Scan"):
            found.append(what)
        elif not re.search(r"\blane = ", scan.get("Index Cond", "")):
            found.append(f"{what} not by lane: {scan.get('Index Cond')}")
        thrown = scan.get("Rows Removed by Filter", 0) + scan.get("Rows Removed by Index Recheck", 0)
        if thrown:
            found.append(f"{what} throws {thrown} rows away: {scan.get('Filter')}")
    for node in nodes(plan):
        if "Sort" in node["Node Type"] and scans(node, table):
            found.append(f"{node['Node Type']} by {node.get('Sort Key')}")
    return found
