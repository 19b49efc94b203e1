/* What rows.c shares with arrow.c and with layout.py and library.py, which mirror it. */
#ifndef CCL_BENCH_ROWS_H
#define CCL_BENCH_ROWS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words of text are compared as little-endian numbers"
#endif

#define REVISION 1

/* Room for reading whole words past the end of a text. */
#define PADDING 64
#define MOST_SLOTS 64
#define MOST_TABLES 16
#define MOST_COLUMNS 32

typedef uint8_t Byte;

static inline uint64_t bit(int32_t number) { return UINT64_C(1) << number; }

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

/* What a word given to rows_open stands for. */
enum role { EVENT_KEY, ARGUMENT_KEY, CATEGORY, CALL_PREFIX };

/* What the value of a key must be, and what is kept of it. */
enum kind { TEXT, TEXT_OR_NULL, WHOLE, REAL, TIME, PRODUCT, SCALAR, LIST, ANY, ARGUMENTS };

/* Slots whose meaning this code knows; the others are columns to it, no more. */
enum slot { PHASE, CATEGORY_NAME, NAME, COLLECTIVE };

/* When a row is a communication call, besides. */
enum rule { NO_CALL, CALL_BY_NAME, CALL_BY_COLLECTIVE };

typedef struct {
    const char *text;
    int32_t length;
    int32_t role;
    int32_t slot; /* of a key */
    int32_t kind; /* of a key */
    int32_t tables[3]; /* of a category: for the phases X, s and f; -1 for none */
    int32_t rule; /* of a category */
} Word;

typedef struct {
    uint64_t *values; /* int64, double, or the number of a text; one size for all of them */
    Byte *valid; /* a bit for each row, as Arrow has it */
    int32_t slot;
    char format; /* Arrow's letter for the type: l or g */
} Column;

typedef struct {
    Column columns[MOST_COLUMNS];
    int32_t width;
    int64_t height, room;
} Table;

/* Each text once, numbered in order of first appearance. */
typedef struct {
    Byte *bytes;
    int64_t *ends; /* ends[n] is where text n begins, ends[n + 1] where it ends */
    uint64_t *hashes;
    uint32_t *places; /* number of a text + 1, by hash; 0 is free */
    int64_t used, room, count, most; /* bytes used and there; texts kept and room for them */
    uint64_t mask;
} Texts;

struct ArrowSchema;
struct ArrowArray;

/* Makes the memory that a pointer points to as large as given; takes the address of the pointer. */
bool grown(void *pointer, int64_t size);

/* The number of a text; -1 without memory. */
int64_t texts_number(Texts *texts, const Byte *at, int64_t length);
void texts_free(Texts *texts);

int arrow_table(Table *table, struct ArrowSchema *schema, struct ArrowArray *array);
int arrow_texts(const Texts *texts, struct ArrowSchema *schema, struct ArrowArray *array);

#endif
