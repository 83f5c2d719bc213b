#!/usr/bin/env python3
"""Writes the documents that the binary knows by itself: tools/reference.py BUILD/src/app/outboxd

The reference, the example of an environment file, the man pages and the completions. The lint suite fails when they differ from the tree.
"""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

REFERENCE = """\
# Reference

Written by `tools/reference.py` from the tables in the program; change those and run it again.

## Commands

Answers go to stdout, logs to stderr.

{commands}
## Settings

Environment variables only. Durations are written `500ms`, `10s`, `5m`, `24h`, `7d`; sizes `4096`, `512KiB`, `8MiB`.
`NAME_FILE` reads any setting from a file (a trailing newline is dropped): `OUTBOX_DATABASE_URL_FILE`,
`OUTBOX_KAFKA_SASL_PASSWORD_FILE`. Unknown names that start with `OUTBOX_` and bad values are refused at the start, all in
one message, exit code 78.

{settings}
## Metrics

`GET /metrics` at `OUTBOX_HTTP_LISTEN`, in the text format of Prometheus.

{metrics}"""

COMMAND_MAN = """\
.TH OUTBOXD 1 "" "outboxd" "outboxd"
.SH NAME
outboxd \\- relay committed events from PostgreSQL to Kafka
.SH SYNOPSIS
.B outboxd
.I command
.RI [ arguments ]
.SH DESCRIPTION
A service writes its rows and an event row in one PostgreSQL transaction;
.B outboxd run
publishes the committed events to Kafka, in the order of their key, and marks them.
The other commands are for whoever installs it and looks after it.
Answers go to the standard output, logs to the standard error.
{commands}.SH ENVIRONMENT
Every setting is an environment variable:
.BR outboxd.env (5).
.SH SEE ALSO
.BR outboxd.env (5)
"""

ENV_MAN = """\
.TH OUTBOXD.ENV 5 "" "outboxd" "outboxd"
.SH NAME
outboxd.env \\- settings of outboxd
.SH DESCRIPTION
.BR outboxd (1)
is set up by environment variables only; systemd reads them from a file of lines NAME=value.
Durations are written 500ms, 10s, 5m, 24h, 7d; sizes 4096, 512KiB, 8MiB.
NAME_FILE reads any setting from a file, without its last newline.
Unknown names that start with OUTBOX_ and bad values are refused at the start, with exit code 78.
.PP
OUTBOX_KAFKA_<PROPERTY> is any property of librdkafka, in capitals, with _ for a dot and __ for _:
OUTBOX_KAFKA_BOOTSTRAP_SERVERS is bootstrap.servers.
.SH SETTINGS
{settings}.SH SEE ALSO
.BR outboxd (1)
"""


def generate(outboxd):
    """The documents as {path below the root: text}."""

    def run(*args):
        # An empty environment: the documents must not depend on the settings of whoever builds them.
        return subprocess.run([outboxd, *args], env={}, check=True, capture_output=True, text=True).stdout

    return {
        "docs/REFERENCE.md": REFERENCE.format(
            commands=run("help", "--markdown"),
            settings=run("config", "--markdown"),
            metrics=run("help", "--metrics"),
        ),
        "docs/outboxd.env.example": run("config", "--env"),
        "docs/outboxd.env.5": ENV_MAN.format(settings=run("config", "--man")),
        "docs/outboxd.1": COMMAND_MAN.format(commands=run("help", "--man")),
        "docs/completion/outboxd.bash": run("help", "--bash"),
        "docs/completion/outboxd.zsh": run("help", "--zsh"),
    }


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: tools/reference.py BUILD/src/app/outboxd")
    for path, text in generate(str(pathlib.Path(sys.argv[1]).resolve())).items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(text)
        print(path)


if __name__ == "__main__":
    main()
