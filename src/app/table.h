/* Tables for people: columns that fit the terminal, long texts cut, nothing that a terminal would obey. */
#ifndef OUTBOXD_TABLE_H
#define OUTBOXD_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "pg.h"

struct table_column {
    const char *title;
    int width;  /* at least; a column with a share gets more */
    int share;  /* of what the terminal has left; 0: none */
    bool right; /* numbers */
};

/* Titles and a line a row. Column `age` of the rows is seconds. A text of the last column that does not fit follows on a line of its
 * own, once for neighbours that share it. */
void table_rows(const struct table_column *columns, int n, const struct rows *rows, int age);

/* A row's only column is a JSON object: all of them as an array. */
void table_json(const struct rows *rows);

/* 95 s as "1m", 7300 s as "2h". */
void table_age(int64_t seconds, char ret[32]);

/* A text as it may be shown: one line, control characters as "?". */
void table_text(const char *text, FILE *out);

#endif
