/* Numbers and foreign texts as a person reads them on a terminal. */
#ifndef OUTBOXD_SHOW_H
#define OUTBOXD_SHOW_H

#include <stdint.h>
#include <stdio.h>

void show_count(int64_t n, char ret[32]);     /* 1,234,567 */
void show_plain(FILE *out, const char *text); /* on one line, and no terminal obeys what is in it */

#endif
