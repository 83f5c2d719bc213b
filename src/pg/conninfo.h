/* The connection string: what libpq would find wrong with it too late, and its secrets kept out of messages. */
#ifndef OUTBOXD_CONNINFO_H
#define OUTBOXD_CONNINFO_H

#include <stdbool.h>

/* The i-th of a list separated by commas, or the only one; "" for an empty one, NULL when there is none. Free it. */
char *conninfo_item(const char *list, int i);
int conninfo_count(const char *list); /* NULL: 1 */

/* One port, or one a host, separated by commas; an empty one is the default. libpq finds a bad one only when it
 * connects, and repeats it: in a URL with the user left out that is the password. */
bool conninfo_ports_valid(const char *ports);

/* Cuts the password, and whatever of the URL might be a piece of one, out of a message, in place. Both may be NULL. */
void conninfo_scrub(const char *url, const char *password, char *message);

#endif
