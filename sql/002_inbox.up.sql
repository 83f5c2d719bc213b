-- The consumer side: which events a group has taken, so that a repeated delivery has no second effect.

-- An id may be topic/partition/offset, so it has room for the longest topic.
CREATE TABLE processed_events (
    consumer_group VARCHAR(100) COLLATE "C" NOT NULL,
    event_id       VARCHAR(300) COLLATE "C" NOT NULL,
    processed_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    expires_at     TIMESTAMPTZ NOT NULL DEFAULT now() + interval '7 days',
    PRIMARY KEY (consumer_group, event_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1);

-- true: first time, go on; false: seen, do nothing. Waits for a transaction that is accepting the same event.
CREATE FUNCTION inbox_accept(consumer_group text, event_id text, ttl interval DEFAULT '7 days') RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO processed_events (consumer_group, event_id, expires_at)
    VALUES (inbox_accept.consumer_group, inbox_accept.event_id, clock_timestamp() + inbox_accept.ttl)
    ON CONFLICT ON CONSTRAINT processed_events_pkey DO NOTHING;
    RETURN FOUND;
END $$;

-- Events whose handler failed for good.
CREATE TABLE inbox_dead (
    consumer_group VARCHAR(100) COLLATE "C" NOT NULL,
    event_id       VARCHAR(300) COLLATE "C" NOT NULL,
    topic          VARCHAR(249) NOT NULL,
    partition      INTEGER NOT NULL,
    "offset"       BIGINT NOT NULL,
    key            TEXT,
    payload        JSONB,
    headers        JSONB NOT NULL DEFAULT '{}',
    error          TEXT NOT NULL,
    attempts       INTEGER NOT NULL,
    died_at        TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer_group, event_id)
);
