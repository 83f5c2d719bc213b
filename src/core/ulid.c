#include "ulid.h"

#include <string.h>
#include <sys/random.h>

#include "clock.h"

#define TIME_BYTES 6
#define MS_MAX     ((1ULL << 48) - 1)

static const char alphabet[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/* Fills the ten random bytes. 0, or -1 when the kernel has none and ULID_SECURE forbids to make do without. */
static int randomise(struct ulid_generator *g)
{
    unsigned char *random = g->last + TIME_BYTES;
    size_t len = sizeof(g->last) - TIME_BYTES;

    if (getrandom(random, len, 0) != (ssize_t)len) {
        if (g->flags & ULID_SECURE)
            return -1;
        /* Only a kernel older than 3.17 comes here: time and place are unlike those of other processes. */
        unsigned long long seed = (unsigned long long)clock_us() ^ (unsigned long long)(__UINTPTR_TYPE__)g;
        for (size_t i = 0; i < len; i++) {
            seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
            random[i] = (unsigned char)(seed >> 56);
        }
    }
    if (g->flags & ULID_PARANOID)
        random[0] &= 0x7f;
    return 0;
}

static void set_time(struct ulid_generator *g, unsigned long long ms)
{
    g->last_ms = ms;
    for (int i = TIME_BYTES - 1; i >= 0; i--, ms >>= 8)
        g->last[i] = (unsigned char)(ms & 0xff);
}

/* Adds one to the random part; false when it overflowed. */
static int increment(struct ulid_generator *g)
{
    for (int i = (int)sizeof(g->last) - 1; i >= TIME_BYTES; i--)
        if (++g->last[i] != 0)
            return 1;
    return 0;
}

int ulid_generator_init(struct ulid_generator *g, int flags)
{
    *g = (struct ulid_generator){.flags = flags};
    return randomise(g);
}

/* A clock that stands or goes back, and 2^80 ids in a millisecond, must not break the order: the time of the
 * last id is kept and counted on from; when the random part is used up, the next millisecond is borrowed. */
void ulid_generate_at(struct ulid_generator *g, unsigned long long ms, char str[27])
{
    if (ms > MS_MAX)
        ms = MS_MAX;
    if (ms > g->last_ms || (g->flags & ULID_RELAXED)) {
        set_time(g, ms);
        (void)randomise(g); /* without randomness the old random part serves: the time is new */
    } else if (!increment(g)) {
        set_time(g, g->last_ms < MS_MAX ? g->last_ms + 1 : MS_MAX);
        (void)randomise(g);
    }
    ulid_encode(str, g->last);
}

void ulid_generate(struct ulid_generator *g, char str[27])
{
    ulid_generate_at(g, (unsigned long long)clock_wall_ms(), str);
}

/* 130 bits of text for 128 bits of value: the first character carries only three bits. */
void ulid_encode(char str[27], const unsigned char ulid[16])
{
    unsigned __int128 value = 0;

    for (int i = 0; i < 16; i++)
        value = value << 8 | ulid[i];
    for (int i = 25; i >= 0; i--, value >>= 5)
        str[i] = alphabet[(unsigned)(value & 31)];
    str[26] = '\0';
}

static int digit(char c)
{
    if (c >= 'a' && c <= 'z')
        c = (char)(c - 'a' + 'A');
    const char *at = c ? strchr(alphabet, c) : NULL;
    return at ? (int)(at - alphabet) : -1;
}

int ulid_decode(unsigned char ulid[16], const char *s)
{
    unsigned __int128 value = 0;

    for (int i = 0; i < 26; i++) {
        int d = digit(s[i]);
        if (d < 0 || (i == 0 && d > 7))
            return -1;
        value = value << 5 | (unsigned)d;
    }
    if (s[26] != '\0')
        return -1;
    for (int i = 15; i >= 0; i--, value >>= 8)
        ulid[i] = (unsigned char)(value & 0xff);
    return 0;
}
