/* What rows.c shares with arrow.c and with layout.py and library.py, which mirror it. */
#ifndef CCL_BENCH_ROWS_H
#define CCL_BENCH_ROWS_H

#include <stddef.h>
#include <stdint.h>

#define REVISION 1

/* Room for reading whole words past the end of a text. */
#define PADDING 64
#define MOST_SLOTS 64
#define MOST_TABLES 16
#define MOST_COLUMNS 32

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
    uint8_t *valid; /* a bit for each row, as Arrow has it */
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
    uint8_t *bytes;
    int64_t *ends; /* ends[n] is where text n begins, ends[n + 1] where it ends */
    uint64_t *hashes;
    uint32_t *places; /* number of a text + 1, by hash; 0 is free */
    int64_t used, room, count, most; /* bytes used and there; texts kept and room for them */
    uint64_t mask;
} Texts;

struct ArrowSchema;
struct ArrowArray;

int arrow_table(Table *table, struct ArrowSchema *schema, struct ArrowArray *array);
int arrow_texts(const Texts *texts, struct ArrowSchema *schema, struct ArrowArray *array);

#endif
