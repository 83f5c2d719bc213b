"""Starts a PostgreSQL and a Kafka, prints the environment for outboxd, and keeps them until Ctrl-C.

    ./dev servers [topic…]
"""

import os
import signal
import sys

from . import kafka, postgres, process


def main():
    topics = sys.argv[1:] or ["orders"]
    root = process.make_root()
    try:
        cluster = postgres.Cluster(root).create().start()
        broker = kafka.Kafka(root).start()
        for topic in topics:
            broker.create_topic(topic)
        cluster.create_database("outbox")
        print(f"export OUTBOX_DATABASE_URL={cluster.url('outbox')}")
        print(f"export OUTBOX_KAFKA_BOOTSTRAP_SERVERS={broker.bootstrap}")
        print(f"# topics: {' '.join(topics)}; the servers stop with process {os.getpid()} (Ctrl-C)", flush=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
        cluster.destroy()
        broker.destroy()
    finally:
        process.remove_root(root)


if __name__ == "__main__":
    main()
