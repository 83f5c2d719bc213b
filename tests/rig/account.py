"""The account of a chaos run: who suffered without guilt, and why something arrived twice.

A message arrives twice only when something took its batch away from the worker after Kafka had it. So an incident must have
been able to do that when it was first delivered:
- a daemon was killed, its sessions were ended, its line to PostgreSQL was cut: the message's lane was held by a transaction
  that this cut, and it was published since that transaction began. Who holds a lane is asked while the daemons stand still;
- PostgreSQL crashed, a broker or the line to it was away: the message was published then, whatever its lane, or before by a
  transaction that was still open when it began. The oldest of these is asked for;
- a line to PostgreSQL stood still: by itself this repeats nothing, but until it moves a worker cannot hear that its session
  is gone;
- events with several topics are sent again to all when one of them does not take them: so one of them is a topic of that kind.
And one incident makes no more repeats than the batches that it can have met have events.
"""

import json
from collections import Counter, defaultdict, namedtuple
from datetime import datetime
from math import floor

from . import judge

Incident = namedtuple("Incident", "cause begin end lanes most", defaults=(None, None))
"""Milliseconds, as messages carry them. lanes: lane → when the transaction that was cut began; None: it acts on all, from
`begin` on, which is when the oldest transaction began that it met. end: of what it did, deafness of the workers included.
most: how many events it can have repeated."""

LANES = 16
POISON = "poison"  # the event_type of what no broker takes
AFTER = 3000  # milliseconds: what is published while the world comes back
AFTER_CUT = 1000  # what a worker whose session is gone publishes until it notices, on a machine that has much to do

HELD_LANES = """
    SELECT application_name, pid, lane, (extract(epoch FROM xact_start) * 1000)::float8
      FROM outbox_lanes l JOIN pg_stat_activity a ON a.backend_xid::text = l.xmax::text AND a.datname = current_database()"""
"""A row lock is in no view, but the row of a lane carries the transaction that locked it."""


def deaf_until(end, silences):
    """When the workers could hear of what ended: `silences` are the (begin, end) in which a line stood still."""
    for begin, healed in sorted(silences):
        if begin <= end + AFTER_CUT:
            end = max(end, healed)
    return end


def watch_innocents(db):
    """Notes every innocent whose attempt was counted or who died, and every culprit that died: also what a retry by hand or a
    purge makes unseen later."""
    db.execute(f"""
        CREATE TABLE rig.noted (id text, event_type text, status int, retry_count int, last_error text,
                                at timestamptz DEFAULT clock_timestamp());
        CREATE FUNCTION rig.note_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO rig.noted VALUES (NEW.id, NEW.event_type, NEW.status, NEW.retry_count, NEW.last_error);
            RETURN NULL; END $$;
        CREATE TRIGGER rig_noted AFTER UPDATE ON outbox_events FOR EACH ROW
            WHEN (NEW.status = 9 OR (NEW.event_type <> '{POISON}' AND NEW.retry_count > 0)) EXECUTE FUNCTION rig.note_it()""")


class Referee(judge.Judge):
    """Keeps the time of every delivery, so that repeats can be explained."""

    def __init__(self, events, partitions):
        super().__init__(events, partitions)
        self.times = {}  # (topic, id) → of the last delivery so far
        self.repeats = []  # (id, topic, before, again)

    def take(self, messages):
        super().take(messages)
        for message in messages:
            id = next((v.decode() for n, v in message.headers() or [] if n == "id"), None)
            at, place = message.timestamp()[1], (message.topic(), id)
            if place in self.times:
                self.repeats.append((id, message.topic(), *sorted((self.times[place], at))))
            self.times[place] = at


def window(incident, lane):
    """When a message of this lane must have been published for the incident to have taken its batch away; None: it cannot.
    Messages carry whole milliseconds: one published behind the BEGIN may bear a time that is a part of one before it."""
    if incident.lanes is None:
        return floor(incident.begin), incident.end + AFTER
    return (floor(incident.lanes[lane]), incident.end + AFTER_CUT) if lane in incident.lanes else None


def explain(repeats, incidents, lane_of, excused=()):
    """Repeats by cause: (Counter, what nothing explains). Each goes to the narrowest incident that can have made it; what is
    more than an incident can have made is not explained. `excused`: ids with several topics that need no incident."""
    causes, unexplained, made = Counter(), [], defaultdict(set)
    ordered = sorted(range(len(incidents)), key=lambda n: (incidents[n].lanes is None, incidents[n].end - incidents[n].begin))
    for id, topic, before, again in repeats:
        for n in ordered:
            met = window(incidents[n], lane_of[id])
            if met and met[0] <= before <= met[1] and (id in made[n] or len(made[n]) < incidents[n].most):
                made[n].add(id)
                causes[incidents[n].cause] += 1
                break
        else:
            if id in excused:
                causes["several topics"] += 1
            else:
                unexplained.append((id, topic, lane_of[id], before, again))
    return causes, unexplained


def nearest(incidents, repeat):
    """For whoever has to find out what an unexplained repeat came from: the incidents around its first delivery."""
    _, _, lane, before, _ = repeat
    around = sorted(incidents, key=lambda i: max(i.begin - before, before - i.end, 0))[:6]
    return [(i.cause, round(i.begin - before), round(i.end - before), i.lanes and i.lanes.get(lane)) for i in around]


def said(daemons, repeat):
    """The same: what their logs say from a second before its first delivery on until the second one."""
    *_, before, again = repeat
    found = []
    for number, daemon in enumerate(daemons):
        for level, _, line in daemon.lines():
            at = datetime.fromisoformat(json.loads(line)["time"]).timestamp() * 1000 if level != "strange" else before
            if before - 1000 <= at <= again:
                found.append(f"{number}: {line[:300]}")
    return "\n".join(found)


def covered(incidents, begin, end):
    """The share of the lanes' time in which a delivery could be repeated with an excuse."""
    total = 0
    for lane in range(LANES):
        reached = begin
        for first, last in sorted(filter(None, (window(i, lane) for i in incidents))):
            total += max(0, min(last, end) - max(first, reached))
            reached = max(reached, min(last, end))
    return total / LANES / (end - begin)


def verdict(chaos):
    """(verdict, repeats by cause, repeats without one) of everything that was committed; culprits must not arrive."""
    events = judge.committed(chaos.db.conn)
    culprits = {row[0] for row in chaos.db.execute("SELECT id FROM rig.ledger WHERE event_type = %s", POISON)}
    for id in culprits:
        events.pop(id)
    found = chaos.kafka.admin.list_topics(timeout=30).topics
    referee = Referee(events, {topic: len(found[topic].partitions) for topic in chaos.topics})
    with judge.no_collector():
        for messages in judge.read_topics(chaos.kafka.internal, chaos.topics):
            referee.take(messages)
    result = referee.close()
    lanes = dict(chaos.db.execute("SELECT id, lane FROM rig.ledger"))
    # A list of topics is sent again to all when one of them does not take it: then those that took it get it twice.
    excused = {id for id, event in events.items() if len(event.topics) > 1 and any(map(chaos.is_moody, event.topics))}
    return result, *explain(referee.repeats, chaos.incidents, lanes, excused)
