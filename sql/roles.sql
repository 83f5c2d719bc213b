-- Optional: three roles with the least that each needs. Run it as the owner of the schema's tables, with search_path set
-- to the outbox's schema, after `outboxd migrate up`:
--     psql -v schema=public -f roles.sql
-- Then grant them to your own users: GRANT outbox_writer TO shop_service; GRANT outbox_relay TO outboxd;

\if :{?schema}
\else
    \set schema public
\endif

SELECT format('CREATE ROLE %I NOLOGIN', r) FROM unnest(ARRAY['outbox_writer', 'outbox_relay', 'outbox_reader']) r
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r) \gexec

SET search_path = :"schema";
GRANT USAGE ON SCHEMA :"schema" TO outbox_writer, outbox_relay, outbox_reader;

-- A service: writes events in its own transactions, accepts events, reads nothing back.
GRANT INSERT (id, topic, event_type, schema_version, aggregate_type, aggregate_id, tenant_id, routing_key, partition_key,
    payload, payload_bytes, headers, metadata, max_retries, occurred_at, expires_at) ON outbox_events TO outbox_writer;
GRANT SELECT (id) ON outbox_events TO outbox_writer;
GRANT SELECT, INSERT ON processed_events TO outbox_writer;
-- Functions are for everybody, unless that default was revoked.
GRANT EXECUTE ON FUNCTION outbox_ulid(), outbox_lane(text), outbox_publish, inbox_accept TO outbox_writer;

-- The relay, its operator's commands and `consume`.
GRANT SELECT, UPDATE, DELETE ON outbox_events TO outbox_relay;
GRANT SELECT, UPDATE ON outbox_lanes TO outbox_relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_parked_topics, processed_events, inbox_dead TO outbox_relay;
GRANT SELECT ON outbox_schema_version, outbox_incarnation, outbox_backlog, outbox_dead TO outbox_relay;

-- A person or an exporter who only looks.
GRANT SELECT ON outbox_events, outbox_lanes, outbox_parked_topics, processed_events, inbox_dead, outbox_schema_version,
    outbox_backlog, outbox_dead TO outbox_reader;
GRANT EXECUTE ON FUNCTION outbox_lane(text), outbox_topics(text, text), outbox_status_name(smallint)
    TO outbox_relay, outbox_reader;
