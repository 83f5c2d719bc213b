"""Private Apache Kafka (KRaft, combined nodes) from the jars that `./dev setup` fetched.

Each node has three listeners: CLIENT, which the daemon uses and which may be advertised under a proxy's port or ask
for a password; INTERNAL, for the brokers among themselves and for the rig, which no injected fault touches; and
CONTROLLER.
"""

import os
import shutil
import signal
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import (AclBinding, AclBindingFilter, AclOperation, AclPermissionType, AdminClient, NewTopic,
                                   ResourcePatternType, ResourceType)

from . import process

SOURCE = Path(__file__).resolve().parents[2]
CANARY = "C4nary sasl 3"
"""The password of the user `canary`: has blanks, and no log may say it."""
JARS = Path(os.environ.get("OUTBOXD_CACHE", SOURCE / ".cache")) / "kafka" / "libs"


def java(main, *args, heap=256, quick=True):
    """`quick`: starts fast and stays small; without it the compiler does its best, for benchmarks."""
    if not (JARS / ".complete").exists():
        raise RuntimeError("the Kafka jars are not there: run ./dev setup")
    flags = ["-Xms64m", f"-Xmx{heap}m", "-XX:+UseSerialGC", *(["-XX:TieredStopAtLevel=1"] if quick else [])]
    return ["java", *flags, f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
            "-cp", f"{JARS}/*", main, *map(str, args)]


class Broker:
    def __init__(self, cluster, node):
        self.cluster, self.node = cluster, node
        self.client_port, self.internal_port, self.controller_port = (process.free_port() for _ in range(3))
        self.advertised_port = self.client_port
        self.home = cluster.home / f"node-{node}"
        self.home.mkdir()
        self.config = self.home / "server.properties"
        self.server = None

    def start(self):
        self.server = process.Server(java("kafka.Kafka", self.config, heap=self.cluster.heap, quick=self.cluster.quick),
                                     self.home / "log", cwd=self.home)

    def stop(self):
        if self.server:
            self.server.thaw()
            self.server.signal(signal.SIGTERM)
            self.server.wait()

    def kill(self):
        if self.server:
            self.server.kill()

    def freeze(self):
        self.server.freeze()

    def thaw(self):
        self.server.thaw()


class Kafka:
    """`users`: name → password asks the clients for SASL PLAIN, with ACLs; the rig itself is a super user.
    `advertise`: node → port that clients are told, for a proxy between them. `host`: where clients find it."""

    def __init__(self, root, brokers=1, users=None, advertise=None, properties=None, heap=256, quick=True, host="127.0.0.1"):
        self.home = Path(root) / f"kafka-{uuid.uuid4().hex[:8]}"
        self.home.mkdir()
        self.users, self.heap, self.quick, self.host = users or {}, heap, quick, host
        self.brokers = [Broker(self, node) for node in range(1, brokers + 1)]
        for broker in self.brokers:
            broker.advertised_port = (advertise or {}).get(broker.node, broker.client_port)
        self.properties = properties or {}
        self.cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._admin = None

    WRITER = (AclOperation.WRITE, AclOperation.DESCRIBE)
    DESCRIBE_CONFIGS = AclOperation.DESCRIBE_CONFIGS

    def _configure(self, broker):
        replicas = min(3, len(self.brokers))
        voters = ",".join(f"{b.node}@127.0.0.1:{b.controller_port}" for b in self.brokers)
        settings = {
            "process.roles": "broker,controller",
            "node.id": broker.node,
            "controller.quorum.voters": voters,
            "listeners": f"CLIENT://{self.host}:{broker.client_port},INTERNAL://127.0.0.1:{broker.internal_port},"
                         f"CONTROLLER://127.0.0.1:{broker.controller_port}",
            "advertised.listeners": f"CLIENT://{self.host}:{broker.advertised_port},"
                                    f"INTERNAL://127.0.0.1:{broker.internal_port}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "INTERNAL",
            "log.dirs": broker.home / "data",
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "broker.session.timeout.ms": 3000,  # a killed broker's partitions move after three seconds, not nine
            "broker.heartbeat.interval.ms": 500,
            "message.max.bytes": 8 * 1024 * 1024,
            "replica.fetch.max.bytes": 8 * 1024 * 1024,
            "log.segment.bytes": 256 * 1024 * 1024,
            "log.index.size.max.bytes": 1024 * 1024,
            "num.network.threads": 2,
            "num.io.threads": 4,
            "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
            "controlled.shutdown.enable": "false",
        }
        if self.users:
            accounts = " ".join(f'user_{name}="{password}"' for name, password in self.users.items())
            settings.update({
                "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.client.plain.sasl.jaas.config":
                    f"org.apache.kafka.common.security.plain.PlainLoginModule required {accounts};",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
            })
        settings.update(self.properties)
        broker.config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def start(self):
        for broker in self.brokers:
            self._configure(broker)
            process.run(java("kafka.tools.StorageTool", "format", f"--cluster-id={self.cluster_id}", "-c", broker.config,
                             "--ignore-formatted", heap=64))
            broker.start()
        self.wait_ready()
        return self

    def wait_ready(self):
        def ready():
            for broker in self.brokers:
                if not broker.server.alive:
                    raise RuntimeError(f"Kafka did not start:\n{broker.server.tail()}")
            if not all(process.accepts(b.internal_port) for b in self.brokers):
                return False
            try:
                return len(self.admin.list_topics(timeout=5).brokers) == len(self.brokers)
            except KafkaException:
                return False

        process.wait_until(ready, "Kafka answers")

    @property
    def bootstrap(self):
        """For the daemon."""
        return ",".join(f"{self.host}:{b.advertised_port}" for b in self.brokers)

    @property
    def internal(self):
        """For the rig."""
        return ",".join(f"127.0.0.1:{b.internal_port}" for b in self.brokers)

    @property
    def admin(self):
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.internal, "log_level": 0,
                                       "reconnect.backoff.max.ms": 500})
        return self._admin

    def create_topic(self, name, partitions=4, replicas=None, **config):
        """Config names with `_` for `.`: create_topic("t", max_message_bytes=50000)."""
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        topic = NewTopic(name, partitions, replicas or min(3, len(self.brokers)), config=settings)
        for future in self.admin.create_topics([topic], operation_timeout=30, request_timeout=30).values():
            future.result(35)
        process.wait_until(lambda: self._has_leaders(name, partitions), f"topic {name} has leaders")
        return name

    def _has_leaders(self, name, partitions):
        found = self.admin.list_topics(name, timeout=10).topics[name]
        return len(found.partitions) == partitions and all(p.leader >= 0 for p in found.partitions.values())

    def delete_topic(self, *names):
        for future in self.admin.delete_topics(list(names), operation_timeout=60).values():
            future.result(60)

    def _acl(self, make, name, user, operation, permission):
        return make(ResourceType.TOPIC, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, permission)

    def allow(self, topic="*", user="relay", operations=WRITER):
        self._acls([self._acl(AclBinding, topic, user, one, AclPermissionType.ALLOW) for one in operations])

    def deny(self, topic, user="relay"):
        """Whatever else is allowed, nothing of this topic is; until undeny."""
        self._acls([self._acl(AclBinding, topic, user, AclOperation.WRITE, AclPermissionType.DENY)])

    def undeny(self, topic, user="relay"):
        one = self._acl(AclBindingFilter, topic, user, AclOperation.WRITE, AclPermissionType.DENY)
        for future in self.admin.delete_acls([one], request_timeout=30).values():
            future.result(35)

    def _acls(self, acls):
        for future in self.admin.create_acls(acls, request_timeout=30).values():
            future.result(35)

    def sasl(self, user, password=None):
        """The daemon's settings to log in."""
        return {"OUTBOX_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT", "OUTBOX_KAFKA_SASL_MECHANISM": "PLAIN",
                "OUTBOX_KAFKA_SASL_USERNAME": user, "OUTBOX_KAFKA_SASL_PASSWORD": password or self.users[user]}

    def leader(self, topic, partition=0):
        """The broker that leads a partition now."""
        def found():
            one = self.admin.list_topics(topic, timeout=10).topics[topic].partitions.get(partition)
            return one and one.leader > 0 and self.brokers[one.leader - 1]

        return process.wait_until(found, f"partition {partition} of {topic} has a leader")

    def stop(self):
        for broker in self.brokers:
            broker.kill()

    def destroy(self):
        self._admin = None
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)
