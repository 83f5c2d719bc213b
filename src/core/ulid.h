/* ULIDs: 48 bits of Unix milliseconds and 80 random bits, 26 characters of Crockford's base 32. Monotonic inside a
 * millisecond: a generator adds one to the random part, so its ids sort in the order in which they were made.
 *
 * The API is that of the C library of this name (generator init, generate, encode, decode): one can replace the other. */
#ifndef OUTBOXD_ULID_H
#define OUTBOXD_ULID_H

enum ulid_flag {
    ULID_RELAXED = 1 << 0,  /* random part anew each time: no order inside a millisecond */
    ULID_PARANOID = 1 << 1, /* clear the top random bit, so that counting up cannot overflow */
    ULID_SECURE = 1 << 2,   /* never fall back from getrandom(2) */
};

struct ulid_generator {
    unsigned char last[16];
    unsigned long long last_ms;
    int flags;
};

int ulid_generator_init(struct ulid_generator *g, int flags); /* 0, or -1 when there is no randomness */
void ulid_generate(struct ulid_generator *g, char str[27]);   /* text; one thread a generator */
void ulid_generate_at(struct ulid_generator *g, unsigned long long ms,
                      char str[27]); /* as if it were then: for tests */
void ulid_encode(char str[27], const unsigned char ulid[16]);
int ulid_decode(unsigned char ulid[16], const char *s); /* either case; 0, or -1: not a ULID */

#endif
