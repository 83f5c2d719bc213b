-- The outbox: what services write and the relay reads. docs/ARCHITECTURE.md tells why each index is there.
-- Runs with search_path set to the outbox's schema; functions keep it (FROM CURRENT).

-- Which database this is: a restored copy must not be taken for the original.
CREATE TABLE outbox_incarnation (
    incarnation UUID NOT NULL DEFAULT gen_random_uuid(),
    single      BOOLEAN PRIMARY KEY DEFAULT true CHECK (single)
);
INSERT INTO outbox_incarnation DEFAULT VALUES;

-- ULID: 48 bits of Unix milliseconds and 80 random bits in Crockford's base 32. The random bits are those of a
-- version 4 UUID (its hex digits 18 to 32 and 1 to 5: none of them is fixed).
CREATE FUNCTION outbox_ulid() RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL SAFE SET search_path FROM CURRENT AS $$
DECLARE
    digits CONSTANT text := '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
    ms   CONSTANT bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
    uuid CONSTANT text   := replace(gen_random_uuid()::text, '-', '');
    hi   CONSTANT bigint := ('x' || substr(uuid, 18, 10))::bit(40)::bigint;
    lo   CONSTANT bigint := ('x' || substr(uuid, 28, 5) || substr(uuid, 1, 5))::bit(40)::bigint;
BEGIN
    RETURN substr(digits, (ms >> 45)::int + 1, 1)
        || substr(digits, (ms >> 40 & 31)::int + 1, 1) || substr(digits, (ms >> 35 & 31)::int + 1, 1)
        || substr(digits, (ms >> 30 & 31)::int + 1, 1) || substr(digits, (ms >> 25 & 31)::int + 1, 1)
        || substr(digits, (ms >> 20 & 31)::int + 1, 1) || substr(digits, (ms >> 15 & 31)::int + 1, 1)
        || substr(digits, (ms >> 10 & 31)::int + 1, 1) || substr(digits, (ms >> 5 & 31)::int + 1, 1)
        || substr(digits, (ms & 31)::int + 1, 1)
        || substr(digits, (hi >> 35 & 31)::int + 1, 1) || substr(digits, (hi >> 30 & 31)::int + 1, 1)
        || substr(digits, (hi >> 25 & 31)::int + 1, 1) || substr(digits, (hi >> 20 & 31)::int + 1, 1)
        || substr(digits, (hi >> 15 & 31)::int + 1, 1) || substr(digits, (hi >> 10 & 31)::int + 1, 1)
        || substr(digits, (hi >> 5 & 31)::int + 1, 1) || substr(digits, (hi & 31)::int + 1, 1)
        || substr(digits, (lo >> 35 & 31)::int + 1, 1) || substr(digits, (lo >> 30 & 31)::int + 1, 1)
        || substr(digits, (lo >> 25 & 31)::int + 1, 1) || substr(digits, (lo >> 20 & 31)::int + 1, 1)
        || substr(digits, (lo >> 15 & 31)::int + 1, 1) || substr(digits, (lo >> 10 & 31)::int + 1, 1)
        || substr(digits, (lo >> 5 & 31)::int + 1, 1) || substr(digits, (lo & 31)::int + 1, 1);
END $$;

-- The lane of a key: our own hash, for hashtext may change between major versions. Bound at creation (RETURN), so it
-- needs no search_path.
CREATE FUNCTION outbox_lane(key text) RETURNS smallint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (get_byte(sha256(convert_to(key, 'UTF8')), 0) & 15)::smallint;

-- The topics of an event, as the relay reads them: blanks trimmed, empty names left out.
CREATE FUNCTION outbox_topics(topic text, routing_key text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN routing_key IS NULL THEN ARRAY[topic]
            ELSE ARRAY(SELECT DISTINCT btrim(t, E' \t\r\n') FROM unnest(string_to_array(routing_key, ',')) t
                       WHERE btrim(t, E' \t\r\n') <> '') END;

CREATE TABLE outbox_events (
    seq            BIGINT GENERATED ALWAYS AS IDENTITY,
    id             VARCHAR(26) COLLATE "C" NOT NULL DEFAULT outbox_ulid() PRIMARY KEY,
    topic          VARCHAR(249) NOT NULL,
    event_type     VARCHAR(100),
    schema_version SMALLINT NOT NULL DEFAULT 1,
    aggregate_type VARCHAR(100) NOT NULL,
    aggregate_id   VARCHAR(255) NOT NULL,
    tenant_id      VARCHAR(64) NOT NULL DEFAULT 'default',
    routing_key    VARCHAR,
    partition_key  VARCHAR(255),
    payload        JSONB NOT NULL,
    payload_bytes  BYTEA,
    headers        JSONB NOT NULL DEFAULT '{}',
    metadata       JSONB NOT NULL DEFAULT '{}',
    status         SMALLINT NOT NULL DEFAULT 0 CHECK (status IN (0, 1, 2, 9)),
    retry_count    SMALLINT NOT NULL DEFAULT 0,
    max_retries    SMALLINT CHECK (max_retries >= 0),
    retry_after    TIMESTAMPTZ,
    last_error     TEXT,
    occurred_at    TIMESTAMPTZ NOT NULL DEFAULT now(),
    created_at     TIMESTAMPTZ NOT NULL DEFAULT now(),
    published_at   TIMESTAMPTZ,
    expires_at     TIMESTAMPTZ,
    lane           SMALLINT NOT NULL GENERATED ALWAYS AS (outbox_lane(coalesce(partition_key, aggregate_id))) STORED
) WITH (
    -- A fast drain turns the whole table over in minutes: vacuum by a fixed number of dead rows, without pauses.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0
);

-- Not compressed: then pg_column_size is the size that will travel, and a claim can bound its bytes before it fetches.
ALTER TABLE outbox_events
    ALTER COLUMN payload SET STORAGE EXTERNAL, ALTER COLUMN payload_bytes SET STORAGE EXTERNAL,
    ALTER COLUMN headers SET STORAGE EXTERNAL, ALTER COLUMN metadata SET STORAGE EXTERNAL;

-- Every secondary index is partial on rows that are not SENT: marking SENT adds no entry to any of them.
-- ready: what a claim may take, in order. The only one that an ordinary event ever enters.
CREATE INDEX outbox_events_ready ON outbox_events (lane, seq)
    WHERE status = 0 OR (status = 2 AND retry_after IS NULL);
-- waiting: FAILED rows whose backoff is running, by due time.
CREATE INDEX outbox_events_waiting ON outbox_events (lane, retry_after)
    WHERE status = 2 AND retry_after < 'infinity';
-- head: refused or released FAILED rows, by stream: what held rows may wait for.
CREATE INDEX outbox_events_head ON outbox_events (lane, topic, (coalesce(partition_key, aggregate_id)), seq)
    WHERE routing_key IS NULL AND status = 2 AND retry_after IS DISTINCT FROM 'infinity';
-- held: rows that wait, by stream; queue: the same rows by topic, the oldest first, for figures and operators. `seq > 0` is true
-- of all and keeps it from others: a plan made while nothing was held would look up a stream in it, and read all of its topic.
CREATE INDEX outbox_events_held ON outbox_events (lane, topic, (coalesce(partition_key, aggregate_id)), seq)
    WHERE routing_key IS NULL AND status = 2 AND retry_after = 'infinity';
CREATE INDEX outbox_events_queue ON outbox_events (lane, topic, seq)
    WHERE routing_key IS NULL AND status = 2 AND retry_after = 'infinity' AND seq > 0;
-- routed: FAILED rows with a list of topics, held or not; dead: DEAD rows. Both by key: few.
CREATE INDEX outbox_events_routed ON outbox_events (lane, (coalesce(partition_key, aggregate_id)), seq)
    WHERE routing_key IS NOT NULL AND status = 2;
CREATE INDEX outbox_events_dead ON outbox_events (lane, (coalesce(partition_key, aggregate_id)), seq)
    WHERE status = 9;

-- Whoever changes an unfinished or DEAD row holds the row of its lane here FOR UPDATE.
CREATE TABLE outbox_lanes (
    lane     SMALLINT PRIMARY KEY CHECK (lane BETWEEN 0 AND 15),
    swept_at TIMESTAMPTZ NOT NULL DEFAULT '-infinity'
);
INSERT INTO outbox_lanes (lane) SELECT generate_series(0, 15);

-- Topics that nobody can write to now.
CREATE TABLE outbox_parked_topics (
    topic       VARCHAR(249) PRIMARY KEY,
    state       TEXT NOT NULL DEFAULT 'parked' CHECK (state IN ('parked', 'draining')),
    reason      TEXT NOT NULL,
    since       TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    probe_after TIMESTAMPTZ NOT NULL,
    probes      INTEGER NOT NULL DEFAULT 0,
    probe_seq   BIGINT NOT NULL,
    probe_lane  SMALLINT NOT NULL
);

CREATE FUNCTION outbox_publish(
    topic text, aggregate_type text, aggregate_id text, payload jsonb,
    event_type text DEFAULT NULL, schema_version int DEFAULT 1, tenant_id text DEFAULT 'default',
    routing_key text DEFAULT NULL, partition_key text DEFAULT NULL, payload_bytes bytea DEFAULT NULL,
    headers jsonb DEFAULT '{}', metadata jsonb DEFAULT '{}', max_retries int DEFAULT NULL,
    occurred_at timestamptz DEFAULT NULL, expires_at timestamptz DEFAULT NULL, id text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    ret text;
BEGIN
    INSERT INTO outbox_events AS e (id, topic, aggregate_type, aggregate_id, payload, event_type, schema_version,
        tenant_id, routing_key, partition_key, payload_bytes, headers, metadata, max_retries, occurred_at, expires_at)
    VALUES (coalesce(outbox_publish.id, outbox_ulid()), outbox_publish.topic, outbox_publish.aggregate_type,
        outbox_publish.aggregate_id,
        coalesce(outbox_publish.payload, CASE WHEN outbox_publish.payload_bytes IS NOT NULL THEN 'null'::jsonb END),
        outbox_publish.event_type, coalesce(outbox_publish.schema_version, 1),
        coalesce(outbox_publish.tenant_id, 'default'), outbox_publish.routing_key, outbox_publish.partition_key,
        outbox_publish.payload_bytes, coalesce(outbox_publish.headers, '{}'), coalesce(outbox_publish.metadata, '{}'),
        outbox_publish.max_retries, coalesce(outbox_publish.occurred_at, now()), outbox_publish.expires_at)
    RETURNING e.id INTO ret;
    RETURN ret;
END $$;

-- Wakes an idle relay at commit. NOTIFY takes a database-wide lock at every commit that uses it, so the trigger is
-- off unless `migrate up` runs with OUTBOX_NOTIFY=on. One channel for all schemas: a relay that wakes in vain only looks.
CREATE FUNCTION outbox_notify() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_notify('outboxd', '');
    RETURN NULL;
END $$;
CREATE TRIGGER outbox_notify AFTER INSERT ON outbox_events FOR EACH STATEMENT EXECUTE FUNCTION outbox_notify();
ALTER TABLE outbox_events DISABLE TRIGGER outbox_notify;

CREATE FUNCTION outbox_status_name(status smallint) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE status WHEN 0 THEN 'NEW' WHEN 1 THEN 'SENT' WHEN 2 THEN 'FAILED' WHEN 9 THEN 'DEAD' END;

CREATE VIEW outbox_backlog AS
    SELECT topic, outbox_status_name(status) AS status, count(*) AS count, min(created_at) AS oldest
    FROM outbox_events WHERE status <> 1 GROUP BY topic, outbox_events.status;

CREATE VIEW outbox_dead AS
    SELECT seq, id, topic, event_type, aggregate_type, aggregate_id, partition_key, routing_key, tenant_id, retry_count,
           last_error, payload, headers, metadata, occurred_at, created_at
    FROM outbox_events WHERE status = 9;
