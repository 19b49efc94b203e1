/* What rows.c shares with reader.py, which mirrors it. */
#ifndef CCL_BENCH_ROWS_H
#define CCL_BENCH_ROWS_H

#include "texts.h"

/* What a word given to rows_open stands for. */
enum role { EVENT_KEY, ARGUMENT_KEY, CATEGORY, CALL_PREFIX, ROLES };

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

#endif
