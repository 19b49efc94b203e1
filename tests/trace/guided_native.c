/* One piece for the native reader, as libFuzzer calls it. */
#include <stdint.h>
#include <stddef.h>

#include "rows.h"

#define PIECES 64 /* of one file: opening it costs more than reading one */

typedef struct Rows Rows;

Rows *rows_open(const Word *words, int32_t word_count, const int32_t *layout, int32_t table_count);
void rows_close(Rows *rows);
int64_t rows_feed(Rows *rows, const char *piece, int64_t length, int32_t must_end);

static const Word *known_words;
static const int32_t *known_layout;
static int32_t known_count, known_tables;

/* What is given to rows_open. */
void guided_words(const Word *words, int32_t count, const int32_t *layout, int32_t tables) {
    known_words = words;
    known_count = count;
    known_layout = layout;
    known_tables = tables;
}

int guided_piece(const uint8_t *data, size_t size) {
    static Rows *rows;
    static int pieces;
    if (!size) return 0;
    if (!rows) rows = rows_open(known_words, known_count, known_layout, known_tables);
    rows_feed(rows, (const char *)data + 1, (int64_t)size - 1, data[0] == '1');
    if (++pieces % PIECES == 0) rows_close(rows), rows = NULL;
    return 0;
}
