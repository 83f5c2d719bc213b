DROP TABLE inbox_dead;
DROP FUNCTION inbox_accept(text, text, interval);
DROP TABLE processed_events;
