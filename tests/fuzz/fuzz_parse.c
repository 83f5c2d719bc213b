/* Numbers, durations, sizes and ULIDs: each against a slower reading of the same rules.
 *
 * Input: the text; its first 16 bytes are also a ULID to be written. */
#include "fuzz.h"
#include "parse.h"
#include "ulid.h"

#define UNTOUCHED INT64_C(-7777777777777)

struct unit {
    const char *name;
    int64_t factor;
};

static const struct unit durations[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}, {0}};
static const struct unit sizes[] = {{"", 1}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}, {0}};
static const struct unit none[] = {{"", 1}, {0}};

/* -?[0-9]+ and a unit, in 128 bits and with a cap that no value reaches. */
static bool read_slowly(const char *text, const struct unit *units, bool sign, int64_t *ret)
{
    __int128 value = 0;
    bool negative = *text == '-';
    const char *at = text + negative;
    size_t digits = strspn(at, "0123456789");

    for (size_t i = 0; i < digits; i++)
        if (value < (__int128)1 << 80)
            value = value * 10 + (at[i] - '0');
    if (negative)
        value = -value;
    if (digits == 0 || value > INT64_MAX || value < INT64_MIN || (!sign && value < 0))
        return false;
    at += digits;
    if (*at == '\0' && value == 0) {
        *ret = 0;
        return true;
    }
    for (; units->name; units++) {
        if (strcmp(at, units->name) != 0)
            continue;
        value *= units->factor;
        if (value > INT64_MAX)
            return false;
        *ret = (int64_t)value;
        return true;
    }
    return false;
}

static void check(const char *text, bool (*parse)(const char *, int64_t *), const struct unit *units, bool sign,
                  void (*format)(int64_t, char[32]))
{
    int64_t value = UNTOUCHED, expected = UNTOUCHED, back;
    char shown[32];
    bool good = parse(text, &value);

    REQUIRE(good == read_slowly(text, units, sign, &expected));
    REQUIRE(value == expected);
    if (!good || !format)
        return;
    format(value, shown);
    REQUIRE(parse(shown, &back) && back == value);
    REQUIRE(value == 0 || strlen(shown) <= strlen(text + strspn(text, "0")) || strcmp(text, shown) == 0);
}

static void check_switch(const char *text)
{
    bool value;
    bool good = parse_bool(text, &value);

    REQUIRE(good == (strcmp(text, "on") == 0 || strcmp(text, "off") == 0));
    REQUIRE(!good || value == (strlen(text) == 2));
}

static void check_ulid(const char *text, struct input input)
{
    unsigned char id[16] = {0}, again[16];
    char shown[27];

    if (input.left)
        memcpy(id, input.at, input.left < sizeof(id) ? input.left : sizeof(id));
    ulid_encode(shown, id);
    REQUIRE(strlen(shown) == 26);
    REQUIRE(ulid_decode(again, shown) == 0 && memcmp(id, again, sizeof(id)) == 0);
    if (ulid_decode(id, text) == 0) {
        ulid_encode(shown, id);
        REQUIRE(strcasecmp(shown, text) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {(const char *)data, size}, rest = input;
    char *text = copy_exactly(take_field(&rest), true);

    check(text, parse_int, none, true, NULL);
    check(text, parse_duration, durations, false, format_duration);
    check(text, parse_size, sizes, false, format_size);
    check_switch(text);
    check_ulid(text, input);
    free(text);
    return 0;
}
