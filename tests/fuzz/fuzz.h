/* What the fuzz targets share. A target is one file with LLVMFuzzerTestOneInput: libFuzzer calls it (./dev fuzz), or
 * replay.c with every file of the committed corpus (suite unit, any compiler). */
#ifndef OUTBOXD_FUZZ_H
#define OUTBOXD_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An invariant. abort() is what both libFuzzer and meson notice. */
#define REQUIRE(condition)                                                            \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                  \
        }                                                                             \
    } while (0)

/* What is left of the input. */
struct input {
    const char *at;
    size_t left;
};

static inline uint8_t take_byte(struct input *input) /* 0 at the end */
{
    if (input->left == 0)
        return 0;
    input->left--;
    return (uint8_t)*input->at++;
}

static inline struct input take_bytes(struct input *input, size_t n) /* fewer at the end */
{
    struct input taken = {input->at, n < input->left ? n : input->left};
    input->at += taken.left;
    input->left -= taken.left;
    return taken;
}

/* Up to the next NUL, which goes, or to the end. */
static inline struct input take_field(struct input *input)
{
    const char *end = input->left ? memchr(input->at, '\0', input->left) : NULL;
    struct input taken = take_bytes(input, end ? (size_t)(end - input->at) : input->left);
    take_byte(input);
    return taken;
}

/* A copy with nothing behind it but, if `terminated`, a NUL: the sanitizer sees the first byte read too far. */
static inline char *copy_exactly(struct input text, bool terminated)
{
    char *copy = malloc(text.left + terminated + (text.left + terminated == 0));
    REQUIRE(copy != NULL);
    if (text.left)
        memcpy(copy, text.at, text.left);
    if (terminated)
        copy[text.left] = '\0';
    return copy;
}

#endif
