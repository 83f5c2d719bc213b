DROP VIEW outbox_dead, outbox_backlog;
DROP FUNCTION outbox_publish(text, text, text, jsonb, text, int, text, text, text, bytea, jsonb, jsonb, int, timestamptz, timestamptz, text);
DROP TABLE outbox_parked_topics, outbox_lanes, outbox_events, outbox_incarnation;
DROP FUNCTION outbox_notify(), outbox_status_name(smallint), outbox_topics(text, text), outbox_lane(text), outbox_ulid();
