/* Columns of a table in memory, and their way to Arrow. */
#ifndef CCL_BENCH_COLUMNS_H
#define CCL_BENCH_COLUMNS_H

#include <stdbool.h>
#include <stdint.h>

#include "bounds.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words of text are compared as little-endian numbers"
#endif

#define NATIVE_REVISION 4 /* as in library.py */

typedef uint8_t Byte;

static inline uint64_t bit(int32_t number) { return UINT64_C(1) << number; }

typedef struct {
    uint64_t *values; /* int64, double, the number of a text; or where each text ends, behind a zero */
    Byte *valid; /* a bit for each row, as Arrow has it */
    Byte *bytes; /* of texts, where the column has its own */
    int64_t used, room; /* bytes of them */
    int32_t slot;
    char format; /* Arrow's letter for the type: l, g, U or Z */
} Column;

typedef struct {
    Column columns[MOST_COLUMNS];
    int32_t width;
    int64_t height, room;
} Table;

struct ArrowSchema;
struct ArrowArray;

/* Makes the memory that a pointer points to as large as given; takes the address of the pointer. */
bool grown(void *pointer, int64_t size);

void free_columns(Table *table);

/* Hands the rows of a table over, and with them the memory; 0 if that went well. */
int arrow_table(Table *table, struct ArrowSchema *schema, struct ArrowArray *array);

/* Hands over a copy of `count` texts; text n goes from ends[n] to ends[n + 1]. */
int arrow_texts(const int64_t *ends, const Byte *bytes, int64_t count, struct ArrowSchema *schema,
                struct ArrowArray *array);

#endif
