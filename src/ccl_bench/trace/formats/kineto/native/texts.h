/* Bytes compared as whole words, and texts of which each is kept once. */
#ifndef CCL_BENCH_TEXTS_H
#define CCL_BENCH_TEXTS_H

#include <string.h>

#include "columns.h"
#include "limits.h"

static inline uint64_t word_at(const Byte *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* The first up to eight bytes of a text; the buffer goes on behind it. */
static inline uint64_t first_of(const Byte *at, int64_t length) {
    uint64_t word = word_at(at);
    return length >= 8 ? word : word & ((UINT64_C(1) << (8 * length)) - 1);
}

static inline uint64_t last_of(const Byte *at, int64_t length) {
    return length >= 8 ? word_at(at + length - 8) : first_of(at, length);
}

/* Each text once, numbered in order of first appearance. */
typedef struct {
    Byte *bytes;
    int64_t *ends; /* ends[n] is where text n begins, ends[n + 1] where it ends */
    uint64_t *hashes;
    uint32_t *places; /* number of a text + 1, by hash; 0 is free */
    int64_t used, room, count, most; /* bytes used and there; texts kept and room for them */
    uint64_t mask;
} Texts;

/* The number of a text; -1 without memory. */
int64_t texts_number(Texts *texts, const Byte *at, int64_t length);
void texts_free(Texts *texts);

#endif
