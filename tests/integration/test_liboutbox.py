"""liboutbox as a C programmer gets it: installed, found by pkg-config, compiled, run."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rig.daemon import SOURCE

EXAMPLE = SOURCE / "docs/examples/shop.c"

# What the library's promises look like from outside: a line a call, then its error text.
PROBE = r"""
#include <outbox.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(const char *what, int code, PGconn *conn)
{
    printf("%s %d %d %s\n", what, code, (int)PQtransactionStatus(conn), code < 0 ? PQerrorMessage(conn) : "");
}

static void run(PGconn *conn, const char *sql) { PQclear(PQexec(conn, sql)); }

static void *publish_many(void *url)
{
    PGconn *conn = PQconnectdb(url);
    struct outbox_event event = {.topic = "t", .aggregate_type = "a", .aggregate_id = "threads", .payload = "{}", .schema = "odd \"schema\""};
    for (int i = 0; i < 200; i++)
        if (outbox_publish(conn, &event, NULL) != 0)
            abort();
    PQfinish(conn);
    return NULL;
}

int main(int argc, char **argv)
{
    (void)argc;
    PGconn *conn = PQconnectdb(argv[1]);
    const char *schema = "odd \"schema\"";
    char id[27];
    struct outbox_event all = {
        .topic = "t", .aggregate_type = "a", .aggregate_id = "i", .payload = "{\"x\": \"\u00e4'\"}", .event_type = "e",
        .partition_key = "p", .tenant_id = "n", .routing_key = "r1,r2", .headers = "{\"h\": 1}", .metadata = "{\"m\": 2}",
        .schema = schema, .payload_bytes = "a\0b", .payload_bytes_len = 3, .schema_version = 7};
    say("all", outbox_publish(conn, &all, id), conn);
    printf("%s\n", id);
    struct outbox_event few = {.topic = "t", .aggregate_type = "a", .aggregate_id = "few", .payload = "1", .schema = schema};
    run(conn, "BEGIN");
    say("rolled-back", outbox_publish(conn, &few, NULL), conn);
    run(conn, "ROLLBACK");
    run(conn, "BEGIN");
    struct outbox_event bad = few;
    bad.topic = NULL;
    say("no-topic", outbox_publish(conn, &bad, id), conn);
    say("aborted", outbox_publish(conn, &few, id), conn);
    run(conn, "ROLLBACK");
    bad = few;
    bad.payload = "{";
    say("bad-json", outbox_publish(conn, &bad, id), conn);
    bad.payload = "{}";
    bad.schema = NULL;
    say("no-schema", outbox_publish(conn, &bad, id), conn);
    char endless[3000] = "";
    memset(endless, 'x', sizeof endless - 1);
    bad.schema = endless;
    run(conn, "SELECT 1"); /* an error before it must not speak for it */
    say("endless-schema", outbox_publish(conn, &bad, id), conn);
    say("accept-alone", inbox_accept(conn, schema, "g", "e1"), conn);
    run(conn, "BEGIN");
    say("accept-1", inbox_accept(conn, schema, "g", "e1"), conn);
    say("accept-2", inbox_accept(conn, schema, "g", "e1"), conn);
    say("accept-other-group", inbox_accept(conn, schema, "h", "e1"), conn);
    run(conn, "ROLLBACK");
    run(conn, "BEGIN");
    say("accept-after-rollback", inbox_accept(conn, schema, "g", "e1"), conn);
    run(conn, "COMMIT");
    PQenterPipelineMode(conn);
    say("pipeline", outbox_publish(conn, &few, id), conn);
    PQexitPipelineMode(conn);
    struct outbox_ulid_generator generator;
    char first[27], second[27];
    unsigned char bytes[16];
    printf("ulid %d ", outbox_ulid_generator_init(&generator));
    outbox_ulid_generate(&generator, first);
    outbox_ulid_generate(&generator, second);
    printf("%d %d ", strcmp(first, second) < 0, outbox_ulid_decode(bytes, first));
    outbox_ulid_encode(second, bytes);
    printf("%d %d\n", strcmp(first, second), outbox_ulid_decode(bytes, "not a ulid"));
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, publish_many, argv[1]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    PQfinish(conn);
    return 0;
}
"""


def call(argv, **options):
    done = subprocess.run(list(map(str, argv)), text=True, capture_output=True, timeout=300, **options)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """The library of build/, installed; its .pc file is told where."""
    home = tmp_path_factory.mktemp("prefix")
    call(["meson", "install", "-C", SOURCE / "build", "--no-rebuild", "--destdir", home],
         env={**os.environ, "PATH": os.defpath + ":" + os.environ["PATH"]})
    [pc] = home.rglob("outbox.pc")
    prefix = re.search(r"^prefix=(.*)$", pc.read_text(), re.M)[1]
    pc.write_text(pc.read_text().replace(f"prefix={prefix}\n", f"prefix={home}{prefix}\n"))
    return home / prefix.lstrip("/")


@pytest.fixture(scope="module")
def compile(prefix, tmp_path_factory):
    """compile(source, *more) → program, built as the header says: cc $(pkg-config --cflags --libs outbox)."""
    pc = next(prefix.rglob("outbox.pc")).parent
    lib = next(prefix.rglob("liboutbox.so")).parent
    folder = tmp_path_factory.mktemp("programs")

    def compile(source, *more, words="$(pkg-config --cflags --libs outbox)", compiler="cc"):
        program = folder / (Path(source).stem + re.sub(r"\W", "", "".join(more) + words)[-20:])
        command = f"{compiler} -Wall -Wextra -Werror {' '.join(map(str, more))} -o {program} {source} {words} -Wl,-rpath,{lib}"
        call(["sh", "-c", command], env={**os.environ, "PKG_CONFIG_PATH": str(pc)})
        return program

    return compile


def test_example_compiles_and_runs(compile, db):
    out = call([compile(EXAMPLE), db.url])
    id = re.fullmatch(r"published (\w{26})\nfirst delivery: mail sent\nsecond delivery: seen before\n", out)[1]
    row = db.execute("SELECT topic, aggregate_id, payload, event_type, headers, schema_version FROM outbox_events WHERE id = %s", id)
    assert row == [("orders", "4711", {"total": 12.5}, "order.placed", {"source": "shop"}, 1)]
    assert db.value("SELECT mails FROM shop_orders") == 1


def test_static_library(compile, prefix, db):
    """As a program does that must run where the library is not installed."""
    archive = next(prefix.rglob("liboutbox.a"))
    program = compile(EXAMPLE, words=f"$(pkg-config --cflags outbox) {archive} $(pkg-config --libs libpq)")
    assert "liboutbox" not in call(["ldd", program])
    assert "mail sent" in call([program, db.url])


def test_header_is_good_for_strict_c_and_cxx(compile, tmp_path):
    for name, compiler, more in (("strict.c", "cc", ("-std=c99", "-pedantic")), ("plus.cc", "c++", ("-std=c++11",))):
        if not shutil.which(compiler):
            pytest.skip(f"no {compiler}")
        source = tmp_path / name
        source.write_text("#include <outbox.h>\nint main(void) { char id[27]; unsigned char u[16] = {0}; outbox_ulid_encode(id, u); return 0; }\n")
        compile(source, *more, compiler=compiler)


def test_only_our_symbols_are_exported(prefix):
    library = next(prefix.rglob("liboutbox.so"))
    names = {line.split()[-1].split("@")[0] for line in call(["nm", "-D", "--defined-only", library]).splitlines()
             if line.split()[-2] != "A"}
    assert names == {"outbox_publish", "inbox_accept", "outbox_ulid_generator_init", "outbox_ulid_generate",
                     "outbox_ulid_encode", "outbox_ulid_decode"}
    archive = next(prefix.rglob("liboutbox.a"))
    names = {line.split()[2] for line in call(["nm", "-g", "--defined-only", archive]).splitlines() if len(line.split()) == 3}
    assert all(name.startswith(("outbox_", "inbox_")) for name in names), names
    assert "libpq" in call(["readelf", "-d", library])


def test_calls(compile, new_db, tmp_path):
    source = tmp_path / "probe.c"
    source.write_text(PROBE)
    db = new_db(schema='odd "schema"').prepare()
    idle, in_transaction, aborted = 0, 2, 3
    lines = call([compile(source, "-pthread"), db.url]).splitlines()
    answers = {line.split()[0]: line.split(None, 3)[1:] for line in lines if len(line.split()) >= 3}

    def answer(name):
        code, state, *text = answers[name]
        return int(code), int(state), text[0] if text else ""

    assert answer("all")[:2] == (0, idle)
    columns = "topic, aggregate_type, aggregate_id, payload, event_type, partition_key, tenant_id, routing_key, headers, " \
              "metadata, payload_bytes, schema_version, status"
    row = db.execute(f"SELECT {columns} FROM {db.table} WHERE id = %s", lines[1])
    assert row == [("t", "a", "i", {"x": "ä'"}, "e", "p", "n", "r1,r2", {"h": 1}, {"m": 2}, b"a\0b", 7, 0)]
    assert answer("rolled-back")[:2] == (0, in_transaction)
    assert db.value(f"SELECT count(*) FROM {db.table} WHERE aggregate_id = 'few'") == 0
    for name, state, text in (("no-topic", aborted, "null value"), ("aborted", aborted, "current transaction is aborted"),
                              ("bad-json", idle, "invalid input syntax for type json"),
                              ("no-schema", idle, "outbox_publish"), ("endless-schema", idle, "does not exist"),
                              ("accept-alone", idle, "outside a transaction")):
        assert answer(name)[:2] == (-1, state) and text in answer(name)[2], (name, answer(name))
    assert [answer(f"accept-{n}")[0] for n in ("1", "2", "other-group", "after-rollback")] == [1, 0, 1, 1]
    assert answer("pipeline")[0] == -1 and "pipeline" in answer("pipeline")[2]
    assert "ulid 0 1 0 0 -1" in lines
    assert db.value(f"SELECT count(*) FROM {db.table} WHERE aggregate_id = 'threads'") == 800
