/* Every size, count and depth that readers in C share, or that the one of SQLite is bounded by. */
#ifndef CCL_BENCH_BOUNDS_H
#define CCL_BENCH_BOUNDS_H

#include <stdint.h>

#define MOST_COLUMNS 32
#define PADDING 64 /* room for reading whole words past the end of a text */

/* SQLite: beyond one of these a table is left to SQLite itself. */
#define MOST_FIELDS 256 /* of a record up to the last that is wanted */
#define LONGEST_HEAD 98307 /* of a record, as SQLite has it */
#define MOST_LEVELS 16 /* of pages, from the root to the rows */
#define LONGEST_RECORD (INT64_C(16) << 20) /* as LONGEST_VALUE_BYTES in trace/sqlite.py */
#define BLOCK_ROWS (INT64_C(1) << 16) /* handed over at a time */
#ifndef LONGEST_RUN /* set to less where each access beyond a page shall be seen */
#define LONGEST_RUN (INT64_C(256) << 10) /* bytes read at a time where pages follow each other */
#endif

#endif
