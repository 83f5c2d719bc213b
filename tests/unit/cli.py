#!/usr/bin/env python3
"""The commands that need no server, from outside: tests/unit/cli.py BUILD/src/app/outboxd"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

OUTBOXD = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else ""
CANARY = "S3cr3tC4n4ry"


def run(*args, **env):
    done = subprocess.run([OUTBOXD, *args], env=env, capture_output=True, text=True, timeout=20)
    return done.returncode, done.stdout, done.stderr


class Commands(unittest.TestCase):
    def test_help(self):
        code, out, err = run("help")
        self.assertEqual((code, err), (0, ""))
        for command in ("config", "ulid", "version", "help"):
            self.assertIn(f"\n  {command} ", out)
        self.assertTrue(all(len(line) <= 120 for line in out.splitlines()))
        self.assertEqual(run("--help")[:2], (0, out))
        code, out, _ = run("help", "ulid")
        self.assertEqual(code, 0)
        self.assertTrue(out.startswith("usage: outboxd ulid [N]\n"))

    def test_help_of_a_command_shows_its_options(self):
        out = run("help", "events")[1]
        for word in ("retry", "--status STATUS", "new|sent|failed|dead|held", "--dry-run"):
            self.assertIn(word, out)

    def test_every_command_has_help(self):
        for args in (("events", "--help"), ("events", "retry", "--topic", "t", "-h"), ("ulid", "--help"), ("run", "--help"), ("migrate", "-h")):
            self.assertEqual(run(*args), run("help", args[0]))
            self.assertEqual(run(*args)[0], 0)

    def test_options_with_an_equals_sign(self):
        self.assertEqual(run("migrate", "print", "--to=1"), run("migrate", "print", "--to", "1"))
        self.assertEqual(run("migrate", "print", "--to=1")[0], 0)
        self.assertEqual(run("migrate", "down", "--to=99")[0], 64)

    def test_bash_completion(self):
        script = run("help", "--bash")[1]

        def complete(*words):
            command = f'{script}\nCOMP_WORDS=({" ".join(words)} ""); COMP_CWORD={len(words)}; _outboxd; echo "${{COMPREPLY[@]}}"'
            return subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True).stdout.split()

        self.assertIn("events", complete("outboxd"))
        self.assertIn("--dry-run", complete("outboxd", "events", "retry"))
        self.assertEqual(complete("outboxd", "events", "--status"), ["new", "sent", "failed", "dead", "held"])
        self.assertEqual(complete("outboxd", "events", "--topic"), [])

    def test_zsh_completion(self):
        """A colon that is not escaped ends the message: what follows it would be run as a function."""
        specs = re.findall(r"^ +'((?:--|1:).*)'", run("help", "--zsh")[1], re.M)
        self.assertIn("--listen[where to listen]:HOST\\:PORT:", specs)
        for spec in specs:
            self.assertIn(len(re.split(r"(?<!\\):", spec)), (1, 3), spec)

    def test_closed_streams_are_no_sockets(self):
        """What is written to them must not go to whatever is opened next."""
        nobody = {"OUTBOX_DATABASE_URL": "postgresql://127.0.0.1:1/x"}  # it waits
        child = subprocess.Popen(["sh", "-c", 'exec "$0" purge <&- >&- 2>&-', OUTBOXD], env=nobody)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        folder, deadline = f"/proc/{child.pid}/fd", time.monotonic() + 20

        def opened():
            found = {}
            for n in range(4):
                with contextlib.suppress(FileNotFoundError):
                    found[n] = os.readlink(f"{folder}/{n}")
            return found

        # The loader opens and closes files of its own before: the first that stays is the program's, behind the three.
        while time.monotonic() < deadline and "anon_inode:[signalfd]" not in opened().values():
            time.sleep(0.02)
        found = opened()
        self.assertEqual([found.get(n) for n in range(3)], ["/dev/null"] * 3, found)

    def test_no_command(self):
        code, out, err = run()
        self.assertEqual((code, out), (64, ""))
        self.assertIn("commands:", err)

    def test_unknown_command(self):
        code, out, err = run("confg")
        self.assertEqual((code, out), (64, ""))
        self.assertIn("did you mean `outboxd config`?", err)
        code, _, err = run("somethingelse")
        self.assertEqual(code, 64)
        self.assertIn("`outboxd help` lists the commands", err)

    def test_usage(self):
        for args in (("dev-broker", "--listen", "127.0.0.1:99999"), ("dev-broker", "--listen", "127.0.0.1:0"), ("ulid", "0"), ("ulid", "x"), ("ulid", "1", "2"), ("config", "--yaml"), ("version", "x"), ("help", "x", "y")):
            code, out, err = run(*args)
            self.assertEqual((code, out), (64, ""), args)
            self.assertIn("usage: outboxd " + args[0], err)

    def test_version(self):
        code, out, _ = run("version")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"^outboxd \d+\.\d+\.\d+\n")
        self.assertEqual(run("--version")[1], out)

    def test_ulid(self):
        code, out, _ = run("ulid", "5000")
        ids = out.split()
        self.assertEqual((code, len(ids)), (0, 5000))
        self.assertEqual(ids, sorted(set(ids)))
        self.assertTrue(all(len(id) == 26 and id[0] in "01234567" for id in ids))
        self.assertEqual(len(run("ulid")[1].split()), 1)

    def test_answer_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([OUTBOXD, "help"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write the answer", done.stderr)
        with open("/dev/full", "w") as full:  # more than a buffer: the failure comes before the end
            done = subprocess.run([OUTBOXD, "ulid", "1000"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertNotIn("Success", done.stderr)


class Config(unittest.TestCase):
    def test_json(self):
        code, out, _ = run("config", "--json", OUTBOX_WORKERS="3", OUTBOX_KAFKA_BOOTSTRAP_SERVERS='a:1,"b"')
        settings = json.loads(out)
        self.assertEqual(code, 0)
        self.assertEqual(settings["OUTBOX_WORKERS"], "3")
        self.assertEqual(settings["OUTBOX_RETENTION"], "24h")
        self.assertIsNone(settings["OUTBOX_DEAD_TOPIC"])
        self.assertEqual(settings["OUTBOX_KAFKA_BOOTSTRAP_SERVERS"], 'a:1,"b"')

    def test_env_reads_back(self):
        given = {"OUTBOX_SCHEMA": 'odd "name" $x', "OUTBOX_BATCH_SIZE": "7", "OUTBOX_KAFKA_CLIENT_ID": "me"}
        _, text, _ = run("config", "--env", **given)
        with tempfile.NamedTemporaryFile("w", suffix=".env") as file:
            file.write(text)
            file.flush()
            script = f"set -a; . {file.name}; exec {OUTBOXD} config --json"
            out = subprocess.run(["/bin/sh", "-c", script], env={}, check=True, capture_output=True, text=True).stdout
        self.assertEqual(json.loads(out), json.loads(run("config", "--json", **given)[1]))

    def test_bad_settings(self):
        code, out, err = run("config", OUTBOX_WORKERS="many", OUTBOX_WORKER="1", OUTBOX_DELIVERY="exactly-once")
        self.assertEqual((code, out), (78, ""))
        self.assertTrue(err.startswith("outboxd: 3 bad settings:\n"))
        self.assertIn("not built yet", err)
        self.assertIn("did you mean OUTBOX_WORKERS?", err)
        self.assertIn("hint: ", err)
        self.assertEqual(run("config", "--markdown", OUTBOX_WORKERS="many")[0], 0)  # the way out still works

    def test_a_mistyped_secret_is_refused_and_not_shown(self):
        for name in ("OUTBOX_KAFKA_SASL_PASWORD", "OUTBOX_KAFKA_SASL_PASWORD_FILE", "OUTBOX_KAFKA_SOCKET_TIMEOUT_MS"):
            with tempfile.NamedTemporaryFile("w") as file:
                file.write(CANARY)
                file.flush()
                for option in ((), ("--json",), ("--env",)):
                    value = file.name if name.endswith("_FILE") else CANARY
                    code, out, err = run("config", *option, **{name: value})
                    self.assertEqual((code, out), (78, ""))
                    self.assertIn(name.removesuffix("_FILE") + ": ", err)
                    if "PASWORD" in name:
                        self.assertNotIn(CANARY, err)

    def test_no_daemon_without_the_address_of_kafka(self):
        consumer = {"OUTBOX_CONSUMER_GROUP": "g", "OUTBOX_CONSUMER_TOPICS": "t", "OUTBOX_CONSUMER_HANDLER": "h"}
        for command in ("run", "consume"):
            code, out, err = run(command, OUTBOX_DATABASE_URL="postgresql://127.0.0.1:1/x", OUTBOX_HTTP_LISTEN="off", **consumer)
            self.assertEqual((code, out), (78, ""))
            self.assertIn("OUTBOX_KAFKA_BOOTSTRAP_SERVERS: it is not set", err)
            self.assertIn("OUTBOX_KAFKA_BOOTSTRAP_SERVERS=<host:port>", err)

    def test_what_librdkafka_finds_is_told_with_the_rest(self):
        bad = {"OUTBOX_WORKERS": "many", "OUTBOX_KAFKA_LINGER_MSS": "5", "OUTBOX_KAFKA_SECURITY_PROTOCOL": "pigeon",
               "OUTBOX_KAFKA_SASL_PASWORD": CANARY}
        code, out, err = run("run", **bad)
        self.assertEqual((code, out, len(err.splitlines())), (78, "", 1))
        self.assertIn(" 5 bad settings: ", err)
        for name in (*bad, "OUTBOX_KAFKA_BOOTSTRAP_SERVERS"):
            self.assertEqual(err.count(f" {name}: "), 1, err)
        self.assertIn("did you mean OUTBOX_KAFKA_LINGER_MS?", err)
        self.assertIn("did you mean OUTBOX_KAFKA_SASL_PASSWORD?", err)
        self.assertNotIn(CANARY, err)
        self.assertNotIn("did you mean", run("config", OUTBOX_KAFKA_X="1")[2])
        for command in ("config", "status", "migrate"):  # of these none needs a broker
            code, out, err = run(command, **bad)
            self.assertEqual((code, out), (78, ""))
            self.assertTrue(err.startswith("outboxd: 4 bad settings:\n"), err)

    def test_no_secret_anywhere(self):
        secrets = {
            "OUTBOX_DATABASE_URL": f"postgresql://u:{CANARY}@h/db",
            "OUTBOX_HTTP_TOKEN": CANARY,
            "OUTBOX_KAFKA_SASL_PASSWORD": CANARY,
            "OUTBOX_KAFKA_SSL_KEY_PEM": CANARY,
        }
        wrong = [{}, {"OUTBOX_WORKERS": "0"}, {"OUTBOX_HTTP_TOKEN": CANARY + " x"}, {"OUTBOX_HTTP_TOKEN_FILE": CANARY}]
        for option in ((), ("--json",), ("--env",), ("--markdown",), ("--man",)):
            for more in wrong:
                _, out, err = run("config", *option, **{**secrets, **more})
                self.assertNotIn(CANARY, out + err)


if __name__ == "__main__":
    unittest.main()
