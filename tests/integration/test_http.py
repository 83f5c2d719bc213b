"""What the daemon tells about itself: health, readiness, metrics and status, to friends and to strangers."""

import shutil
import subprocess
import time

import pytest
from rig import daemon as daemons
from rig import kafka as kafkas
from rig import process, writer
from rig.http import Window
from rig.process import wait_until

SAMPLE = 15  # seconds in which the sampled gauges must have followed


@pytest.fixture
def serve(start):
    """Starts a daemon with its window open: (daemon, window)."""
    def serve(db, token=None, host="127.0.0.1", **settings):
        port = process.free_port()
        if token:
            settings["OUTBOX_HTTP_TOKEN"] = token
        daemon = start(db, secrets=[token], OUTBOX_HTTP_LISTEN=f"{host}:{port}", **settings)
        window = Window(port, token)
        wait_until(lambda: window.get("/healthz")[0] == 200, "the window is open")
        return daemon, window

    return serve


@pytest.mark.short
def test_pages(db, serve):
    _, window = serve(db)
    assert window.get("/healthz") == (200, "ok\n")
    assert window.wait("/readyz", 200) == "ready\n"
    assert window.get("/metrics", method="HEAD") == (200, "")
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert window.get("/metrics", method=method)[0] == 405
    for path in ("/", "/metrics/", "/../etc/passwd", "//metrics", "/METRICS"):
        assert window.get(path)[0] == 404
    wait_until(lambda: window.status()["pending"] is not None, "figures")
    status = window.status()
    assert status["ready"] is True and status["reason"] == "" and len(status["workers"]) == 2
    assert (status["pending"], status["failed"], status["held"], status["dead"], status["parked"]) == (0, 0, 0, 0, [])


@pytest.mark.short
def test_token(db, serve):
    _, window = serve(db, token="s3same-0pen")
    stranger = Window(window.port)
    assert stranger.get("/healthz")[0] == 200
    stranger.wait("/readyz", 200)
    for path in ("/metrics", "/status", "/", "/nothing"):
        assert stranger.get(path)[0] == 401
    for wrong in ("s3same-0pe", "s3same-0penn", "s3same-0peN", "x", "s3same-0pens3same-0pen"):
        assert window.get("/metrics", token=wrong)[0] == 401
    assert window.get("/metrics")[0] == 200 and window.get("/status")[0] == 200 and window.get("/nothing")[0] == 404


def refused(db, **settings):
    done = daemons.call("run", **{**db.settings, "OUTBOX_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", **settings})
    assert done.returncode == 78, done.stderr
    return done.stderr


@pytest.mark.parametrize("address", ["0.0.0.0", "[::]", "*"])
def test_other_hosts_need_a_token(db, address):
    if address == "*":
        assert "OUTBOX_HTTP_LISTEN" in refused(db, OUTBOX_HTTP_LISTEN="no.such.host.invalid:1")
        return
    text = refused(db, OUTBOX_HTTP_LISTEN=f"{address}:{process.free_port()}")
    assert "OUTBOX_HTTP_TOKEN" in text and "hint=" in text


def test_other_hosts_with_a_token(db, serve):
    _, window = serve(db, token="let-me-in", host="0.0.0.0")
    assert window.get("/metrics")[0] == 200


def test_taken_port(db, serve):
    _, window = serve(db)
    text = refused(db, OUTBOX_HTTP_LISTEN=f"127.0.0.1:{window.port}")
    assert "in use" in text and "hint=" in text


def test_off(db, start):
    daemon = start(db, OUTBOX_HTTP_LISTEN="off")
    daemon.wait_log("relaying")
    assert "listening" not in daemon.text()


def test_readiness_follows_the_servers(root, new_cluster, new_db, serve):
    """Healthy all the time; ready only while it could deliver; the reason names who is away."""
    cluster = new_cluster()
    db = new_db(cluster).prepare()
    db.conn.close()
    cluster.stop()
    kafka = kafkas.Kafka(root)
    kafka.start()
    try:
        kafka.create_topic("followed")
        _, window = serve(db, kafka=kafka)
        assert "PostgreSQL" in window.wait("/readyz", 503)
        assert window.get("/healthz")[0] == 200 and window.status()["pending"] is None
        assert window.metrics()["outboxd_breaker_open"] == 1 or "starting" in window.get("/readyz")[1]
        cluster.start()
        window.wait("/readyz", 200)
        window.wait_metric("outboxd_breaker_open", 0)

        cluster.stop("immediate")
        assert "PostgreSQL" in window.wait("/readyz", 503)
        window.wait_metric("outboxd_breaker_open", 1)
        cluster.start()
        window.wait("/readyz", 200)

        writer.bulk(db.conn, "followed", 10, keys=2)
        db.wait_settled()
        kafka.brokers[0].kill()
        begin = time.monotonic()
        assert "Kafka" in window.wait("/readyz", 503)
        assert time.monotonic() - begin < 10
        assert window.status()["ready"] is False and "Kafka" in window.status()["reason"]
        window.wait_metric("outboxd_breaker_open", 1)
        assert window.get("/healthz")[0] == 200
        kafka.brokers[0].start()
        window.wait("/readyz", 200)
        window.wait_metric("outboxd_breaker_open", 0)
    finally:
        kafka.destroy()


def test_every_metric_in_a_scripted_run(db, new_topic, serve):
    """So many sent, refused, dead, held, parked and purged; the histograms agree with the counters."""
    good = new_topic()
    narrow = new_topic(max_message_bytes=2000)
    missing = good + "-missing"
    daemon, window = serve(db, OUTBOX_WORKERS=1, OUTBOX_MAX_RETRIES=2, OUTBOX_RETRY_BASE="1h", OUTBOX_RETRY_MAX="1h")
    metric = window.metrics

    writer.bulk(db.conn, good, 500, keys=10)
    window.wait_metric('outboxd_events_total{result="sent"}', 500)
    seen = metric()
    assert seen["outboxd_delivery_seconds_count"] == 500
    assert seen["outboxd_batch_events_sum"] == 500
    batches = seen["outboxd_batch_events_count"]
    assert batches == seen['outboxd_batch_seconds_count{step="claim"}'] == seen['outboxd_batch_seconds_count{step="publish"}'] \
        == seen['outboxd_batch_seconds_count{step="mark"}']
    assert 0 < seen["outboxd_delivery_seconds_sum"] < 500 * 60
    for name in ("outboxd_batch_events", "outboxd_delivery_seconds"):
        assert seen[name + '_bucket{le="+Inf"}'] == seen[name + "_count"]

    writer.publish(db.conn, narrow, "big", '{"fill": "' + "x" * 5000 + '"}')  # refused: FAILED, and its followers are held
    writer.publish(db.conn, narrow, "big")
    writer.publish(db.conn, narrow, "big")
    writer.publish(db.conn, good, "dead", headers="[]")  # headers that are no object: DEAD at once
    writer.bulk(db.conn, missing, 7, keys=3)
    window.wait_metric('outboxd_events_total{result="failed"}', 1)
    window.wait_metric('outboxd_events_total{result="dead"}', 1)
    window.wait_metric("outboxd_failed", 1, SAMPLE)
    window.wait_metric("outboxd_dead", 1, SAMPLE)
    window.wait_metric("outboxd_held", 2 + 7, SAMPLE)
    window.wait_metric("outboxd_parked_topics", 1, SAMPLE)
    assert 0 <= window.metrics()["outboxd_figures_age_seconds"] < SAMPLE
    window.wait_metric("outboxd_pending", 1 + 2 + 7, SAMPLE)
    window.wait_metric("outboxd_oldest_pending_seconds", lambda age: age > 3, SAMPLE)
    seen = metric()
    assert seen["outboxd_oldest_pending_seconds"] < 120 and seen["outboxd_pending_capped"] == 0
    assert seen['outboxd_events_total{result="sent"}'] == 500 and seen["outboxd_breaker_open"] == 0
    assert {"outboxd_producer_rebuilds_total", "outboxd_dead_copies_lost_total"} <= set(seen)
    assert 0 <= seen["outboxd_lanes_held"] <= 16
    assert [value for name, value in seen.items() if name.startswith("outboxd_build_info{version=")] == [1]
    status = window.status()
    assert (status["pending"], status["failed"], status["held"], status["dead"]) == (10, 1, 9, 1)
    [parked] = status["parked"]
    assert (parked["topic"], parked["held"]) == (missing, 7) and "exist" in parked["reason"] and parked["since"].endswith("Z")

    promtool = shutil.which("promtool")
    assert promtool, "promtool (Debian package prometheus) is not installed: run ./dev setup"
    done = subprocess.run([promtool, "check", "metrics"], input=window.get("/metrics")[1], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert daemon.alive


def test_lanes_held(db, new_kafka, serve):
    """A broker that hangs keeps the batch in flight, and so the lanes."""
    kafka = new_kafka()
    topic = kafka.create_topic("hanging")
    _, window = serve(db, kafka=kafka, OUTBOX_WORKERS=1, OUTBOX_SHUTDOWN_TIMEOUT="1s")
    writer.bulk(db.conn, topic, 100, keys=10)
    db.wait_settled()
    window.wait_metric("outboxd_lanes_held", 0)
    kafka.brokers[0].freeze()
    writer.bulk(db.conn, topic, 100, keys=10)
    window.wait_metric("outboxd_lanes_held", lambda lanes: lanes >= 12)  # a sweep may have one or the other
    assert sum(worker["lanes"] for worker in window.status()["workers"]) >= 12
    kafka.brokers[0].thaw()
    window.wait_metric("outboxd_lanes_held", 0)


def test_no_lanes_are_held_while_kafka_is_away(db, new_kafka, serve):
    kafka = new_kafka()
    topic = kafka.create_topic("away")
    _, window = serve(db, kafka=kafka, OUTBOX_WORKERS=1)
    kafka.brokers[0].freeze()
    writer.bulk(db.conn, topic, 100, keys=10)
    window.wait_metric("outboxd_lanes_held", lambda lanes: lanes >= 12)
    kafka.brokers[0].kill()
    window.wait_metric("outboxd_breaker_open", 1)
    wait_until(lambda: [worker["lanes"] for worker in window.status()["workers"]] == [0], "no lanes", 5)


def test_scrapes_cost_no_query(cluster, db, serve):
    """A hundred scrapes a second for five seconds: the database sees no more statements than without."""
    daemon, window = serve(db, OUTBOX_POLL_INTERVAL="1m")
    window.wait("/readyz", 200)
    wait_until(lambda: window.status()["pending"] is not None, "figures")

    def transactions():
        return db.value("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")

    def watched(scrape):
        time.sleep(1.5)  # the server's own statistics follow within a second
        before, cpu, begin = transactions(), daemon.cpu_seconds(), time.monotonic()
        for n in range(500):
            if scrape:
                assert window.get("/metrics")[0] == 200
            time.sleep(max(0, begin + n / 100 - time.monotonic()))
        time.sleep(1.5)
        return transactions() - before, daemon.cpu_seconds() - cpu, time.monotonic() - begin

    quiet, idle_cpu, _ = watched(False)
    scraped, busy_cpu, seconds = watched(True)
    assert scraped <= quiet + 10, f"{scraped} transactions while scraped, {quiet} without"
    share = (busy_cpu - idle_cpu) / seconds
    print(f"500 scrapes: {share:.2%} of a core")
    assert share < 0.1  # a slow, shared or sanitized machine; the figure itself is printed
