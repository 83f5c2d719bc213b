/* The migrations of sql/, embedded at build time. */
#ifndef OUTBOXD_MIGRATION_H
#define OUTBOXD_MIGRATION_H

struct migration {
    int version; /* 1, 2, ... without gaps */
    const char *name, *checksum, *up, *down;
};

extern const struct migration migrations[];
extern const int n_migrations;

#endif
