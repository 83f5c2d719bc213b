/* What a text must look like. Each returns NULL, or what is wrong, without the text itself (it may be a
 * secret). */
#ifndef OUTBOXD_CONFIG_CHECK_H
#define OUTBOXD_CONFIG_CHECK_H

const char *check_identifier(const char *text);
const char *check_function(const char *text);
const char *check_topic(const char *text);
const char *check_topics(const char *text);
const char *check_group(const char *text);
const char *check_source(const char *text);
const char *check_listen(const char *text);
const char *check_token(const char *text);

#endif
