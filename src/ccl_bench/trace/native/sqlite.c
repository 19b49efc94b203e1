/* The rows of a table of an SQLite database to columns, read from the pages of the file.
 * https://www.sqlite.org/fileformat2.html
 *
 * What it reads, SQLite reads to the same values in the same order. With anything unusual in the file, in a
 * page or in a wanted value, and without memory, the table is refused, and SQLite itself has to read it.
 * A page is read once: whatever a page points to, reading ends.
 */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "columns.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kind { WHOLE, REAL, TEXT, BLOB, KINDS };

static const char FORMATS[KINDS] = {'l', 'g', 'U', 'Z'};

/* A wanted column, as tables.py mirrors it. */
typedef struct {
    int32_t field; /* its place in a record; -1 for the number of the row */
    int32_t kind;
    int32_t is_real; /* SQLite gives whole numbers of it as real ones */
    int32_t is_filled; /* it has a default, which is no part of the file's records */
} Wanted;

typedef struct {
    int64_t first, last;
} Range;

/* Pages that lie one behind the other in the file. */
typedef struct {
    Byte *bytes;
    int64_t first, count, next; /* number of the first page, pages, and how many are read the next time */
} Run;

typedef struct {
    Byte *page; /* of a level above the rows: a copy */
    const Byte *cells;
    int32_t count, at;
} Level;

typedef struct {
    int descriptor;
    int64_t page_size, usable, pages;
    bool moves_pages;
    Byte *seen; /* a bit for each page */
    Run tree, chain;
    Level levels[MOST_LEVELS];
    int32_t depth;
    Wanted wanted[MOST_COLUMNS];
    Wanted filter;
    Range *ranges;
    int32_t range_count, fields; /* fields of a record that are looked at */
    Table table;
    int64_t rows, most_rows, text_bytes, bytes, most_bytes; /* `bytes` are those of texts and blobs */
    Byte *record; /* one that goes on in further pages */
    int64_t types[MOST_FIELDS], places[MOST_FIELDS + 1];
    int32_t present; /* fields of the record, if they are fewer than are looked at */
} Scan;

/* ---- pages ---- */

static uint32_t big_endian(const Byte *at, int32_t size) {
    uint32_t value = 0;
    for (int32_t n = 0; n < size; n++) value = value << 8 | at[n];
    return value;
}

static bool is_read(const Scan *scan, Byte *to, int64_t size, int64_t from) {
    while (size > 0) {
        ssize_t got = pread(scan->descriptor, to, (size_t)size, (off_t)from);
        if (got <= 0) return false;
        to += got;
        from += got;
        size -= got;
    }
    return true;
}

/* A page that was not read before; the run goes on growing while pages follow each other. */
static const Byte *page_of(Scan *scan, Run *run, int64_t number) {
    int64_t lock_page = INT64_C(0x40000000) / scan->page_size + 1;
    if (number < 2 || number > scan->pages || number == lock_page) return NULL;
    if (scan->seen[number >> 3] >> (number & 7) & 1) return NULL;
    scan->seen[number >> 3] |= (Byte)(1 << (number & 7));
    if (number < run->first || number >= run->first + run->count) {
        int64_t most = LONGEST_RUN / scan->page_size;
        run->next = number == run->first + run->count && run->next < most ? 2 * run->next : run->next / 2;
        if (run->next < 1) run->next = 1;
        run->first = number;
        run->count = run->next < scan->pages - number + 1 ? run->next : scan->pages - number + 1;
        if (is_read(scan, run->bytes, run->count * scan->page_size, (number - 1) * scan->page_size))
            return run->bytes;
        run->count = 0;
        return NULL;
    }
    return run->bytes + (number - run->first) * scan->page_size;
}

/* Reads a number of 7 bits a byte; where the next begins, NULL if it does not end before `end`. */
static inline const Byte *after_varint(const Byte *at, const Byte *end, uint64_t *value) {
    if (at < end && *at < 0x80) return *value = *at, at + 1;
    uint64_t found = 0;
    for (int32_t n = 0; n < 8 && at < end; n++) {
        found = found << 7 | (*at & 0x7f);
        if (*at++ < 0x80) return *value = found, at;
    }
    if (at >= end) return NULL;
    return *value = found << 8 | *at, at + 1;
}

enum { INNER = 5, LEAF = 13 };

/* Goes down to a page; false for one that is not of a table. */
static bool entered(Scan *scan, int64_t number) {
    if (scan->depth == MOST_LEVELS) return false;
    const Byte *page = page_of(scan, &scan->tree, number);
    if (!page || (*page != INNER && *page != LEAF)) return false;
    Level *level = &scan->levels[scan->depth];
    if (*page == INNER) {
        if (!level->page && !(level->page = malloc((size_t)scan->page_size))) return false;
        page = memcpy(level->page, page, (size_t)scan->page_size);
    }
    level->cells = page;
    level->count = (int32_t)big_endian(page + 3, 2);
    level->at = 0;
    int32_t head = *page == INNER ? 12 : 8;
    if (level->count > (scan->page_size - 8) / 6 || head + 2 * level->count > scan->usable) return false;
    if (!level->count && (scan->depth > 0 || *page == INNER)) return false;
    scan->depth++;
    return true;
}

/* The cell that a level has come to; NULL where it cannot be one. */
static const Byte *cell_of(const Scan *scan, const Level *level) {
    int32_t is_inner = *level->cells == INNER, head = is_inner ? 12 : 8;
    int64_t place = big_endian(level->cells + head + 2 * level->at, 2);
    if (place < head + 2 * level->count || place > scan->usable - 4 - is_inner) return NULL;
    return level->cells + place;
}

/* ---- records ---- */

/* The bytes of a record, which goes on in a chain of pages where it is long. */
static const Byte *whole_record(Scan *scan, const Byte *cell, int64_t length, int64_t local) {
    if (scan->moves_pages) return NULL; /* SQLite has another way from page to page there */
    if (!scan->chain.bytes && !(scan->chain.bytes = malloc((size_t)LONGEST_RUN))) return NULL;
    if (!grown(&scan->record, length + PADDING)) return NULL;
    memcpy(scan->record, cell, (size_t)local);
    int64_t next = big_endian(cell + local, 4);
    for (int64_t at = local; at < length;) {
        const Byte *page = page_of(scan, &scan->chain, next);
        if (!page) return NULL;
        int64_t rest = length - at, part = rest < scan->usable - 4 ? rest : scan->usable - 4;
        memcpy(scan->record + at, page + 4, (size_t)part);
        next = big_endian(page, 4);
        at += part;
    }
    return scan->record;
}

static inline int64_t size_of(int64_t type) {
    static const int8_t sizes[] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0};
    return type < 10 ? sizes[type] : (type - 12) / 2;
}

/* Notes types and places of the fields that are looked at; false for a record that is damaged. */
static bool has_fields(Scan *scan, const Byte *record, int64_t length) {
    uint64_t head, type;
    const Byte *at = after_varint(record, record + length, &head);
    if (!at || head > (uint64_t)length) return false;
    const Byte *end = record + head;
    if (end < at) return false;
    int64_t place = (int64_t)head;
    int32_t n = 0;
    for (; n < scan->fields && at < end; n++) {
        if (!(at = after_varint(at, end, &type))) return false;
        if (type == 10 || type == 11 || type > INT32_MAX) return false;
        scan->types[n] = (int64_t)type;
        scan->places[n] = place;
        place += size_of((int64_t)type);
    }
    scan->present = n;
    return at == end ? place == length : place <= length;
}

static inline int64_t whole_at(const Byte *at, int64_t type) {
    if (type >= 8) return type - 8;
    int64_t size = size_of(type), value = (int8_t)*at;
    for (int64_t n = 1; n < size; n++) value = (int64_t)((uint64_t)value << 8 | at[n]);
    return value;
}

static inline double real_at(const Byte *at) {
    uint64_t bits = (uint64_t)whole_at(at, 6);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline bool is_whole(int64_t type) { return (type >= 1 && type <= 6) || type == 8 || type == 9; }

enum meaning { ABSENT, PRESENT, UNUSUAL };

static enum meaning real_as_whole(double value, uint64_t *found) {
    if (!(fabs(value) < 0x1p63) || value != trunc(value)) return ABSENT;
    *found = (uint64_t)(int64_t)value;
    return PRESENT;
}

/* What a number in a field means in a column of numbers. */
static enum meaning number_of(const Wanted *wanted, const Byte *at, int64_t type, uint64_t *found) {
    bool is_real = type == 7;
    if (!is_real && !is_whole(type)) return ABSENT;
    int64_t whole = is_real ? 0 : whole_at(at, type);
    double real = is_real ? real_at(at) : (double)whole;
    if (wanted->kind == WHOLE) {
        if (is_real || wanted->is_real) return real_as_whole(real, found);
        *found = (uint64_t)whole;
        return PRESENT;
    }
    if (!isfinite(real)) return ABSENT;
    memcpy(found, &real, sizeof real);
    return PRESENT;
}

/* The number of the row or in a field. */
static enum meaning any_number(Scan *scan, const Wanted *wanted, const Byte *record, int64_t row, uint64_t *found) {
    if (wanted->field < 0) {
        double real = (double)row;
        *found = (uint64_t)row;
        if (wanted->kind == REAL) memcpy(found, &real, sizeof real);
        return PRESENT;
    }
    if (wanted->field >= scan->present) return wanted->is_filled ? UNUSUAL : ABSENT;
    int64_t type = scan->types[wanted->field];
    if (type >= 13 && type % 2) scan->text_bytes += size_of(type), scan->bytes += size_of(type);
    return number_of(wanted, record + scan->places[wanted->field], type, found);
}

/* Whether the row is wanted: 1 if it is, 0 if not, -1 for a value that SQLite would convert. */
static int passes(const Scan *scan, const Byte *record, int64_t row) {
    if (!scan->range_count) return 1;
    int32_t field = scan->filter.field;
    int64_t number = row;
    if (field >= 0) {
        if (field >= scan->present) return scan->filter.is_filled ? -1 : 0;
        int64_t type = scan->types[field];
        if (type == 0) return 0;
        if (!is_whole(type)) return -1;
        number = whole_at(record + scan->places[field], type);
    }
    int32_t low = 0, high = scan->range_count;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (scan->ranges[middle].last < number) low = middle + 1;
        else high = middle;
    }
    return low < scan->range_count && scan->ranges[low].first <= number;
}

/* ---- texts ---- */

static inline bool goes_on(const Byte *at, int32_t count) {
    for (int32_t n = 1; n <= count; n++)
        if ((at[n] & 0xc0) != 0x80) return false;
    return true;
}

/* How long the character is that begins here; 0 for none. */
static int64_t character(const Byte *at, int64_t left) {
    Byte first = at[0];
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first < 0xe0) return left >= 2 && goes_on(at, 1) ? 2 : 0;
    if ((first & 0xf0) == 0xe0) {
        if (left < 3 || !goes_on(at, 2)) return 0;
        bool is_long = first != 0xe0 || at[1] >= 0xa0, is_no_surrogate = first != 0xed || at[1] < 0xa0;
        return is_long && is_no_surrogate ? 3 : 0;
    }
    if (first < 0xf0 || first > 0xf4 || left < 4 || !goes_on(at, 3)) return 0;
    return (first != 0xf0 || at[1] >= 0x90) && (first != 0xf4 || at[1] < 0x90) ? 4 : 0;
}

static bool is_utf8(const Byte *at, int64_t length) {
    const Byte *end = at + length;
    while (at < end) {
        uint64_t word;
        if (end - at >= 8 && (memcpy(&word, at, sizeof word), !(word & UINT64_C(0x8080808080808080)))) {
            at += 8;
            continue;
        }
        int64_t size = character(at, end - at);
        if (!size) return false;
        at += size;
    }
    return true;
}

/* Adds the bytes in a field to a column of texts. */
static enum meaning added_bytes(Scan *scan, int32_t n, const Byte *record) {
    const Wanted *wanted = &scan->wanted[n];
    if (wanted->field < 0) return UNUSUAL;
    if (wanted->field >= scan->present) return wanted->is_filled ? UNUSUAL : ABSENT;
    int64_t type = scan->types[wanted->field], size = size_of(type);
    if (type == 0) return ABSENT;
    if (type < 12 || (wanted->kind == TEXT && type % 2 == 0)) return UNUSUAL;
    const Byte *at = record + scan->places[wanted->field];
    if (wanted->kind == TEXT) {
        if (!is_utf8(at, size)) return UNUSUAL;
        scan->text_bytes += size;
    }
    scan->bytes += size;
    Column *column = &scan->table.columns[n];
    if (column->room - column->used < size) {
        int64_t room = column->used + size + column->used / 2 + 4096;
        if (!grown(&column->bytes, room)) return UNUSUAL;
        column->room = room;
    }
    memcpy(column->bytes + column->used, at, (size_t)size);
    column->used += size;
    return PRESENT;
}

/* ---- rows ---- */

static bool has_room(Scan *scan) {
    Table *table = &scan->table;
    if (table->room) return true;
    for (int32_t n = 0; n < table->width; n++) {
        Column *column = &table->columns[n];
        column->values = malloc((size_t)(BLOCK_ROWS + 1) * sizeof *column->values);
        column->valid = calloc(BLOCK_ROWS / 8, 1);
        if (!column->values || !column->valid) return false;
        if (!column->bytes && scan->wanted[n].kind >= TEXT && !grown(&column->bytes, column->room = 4096)) return false;
        column->values[0] = 0;
    }
    table->room = BLOCK_ROWS;
    return true;
}

static bool added(Scan *scan, const Byte *record, int64_t row) {
    Table *table = &scan->table;
    if (!has_room(scan)) return false;
    int64_t height = table->height;
    for (int32_t n = 0; n < table->width; n++) {
        Column *column = &table->columns[n];
        uint64_t value = 0;
        bool has_bytes = scan->wanted[n].kind >= TEXT;
        enum meaning meaning = has_bytes ? added_bytes(scan, n, record)
                                         : any_number(scan, &scan->wanted[n], record, row, &value);
        if (meaning == UNUSUAL) return false;
        column->values[height + has_bytes] = has_bytes ? (uint64_t)column->used : value;
        if (meaning == PRESENT) column->valid[height >> 3] |= (Byte)(1 << (height & 7));
    }
    table->height++;
    return true;
}

/* Reads the row that a leaf has come to. */
static bool has_taken(Scan *scan, const Level *level) {
    const Byte *end = level->cells + scan->usable, *at = cell_of(scan, level);
    uint64_t length, row;
    if (!at || !(at = after_varint(at, end, &length)) || !(at = after_varint(at, end, &row))) return false;
    if (length < 1 || length > (uint64_t)LONGEST_RECORD) return false;
    int64_t local = (int64_t)length, most = scan->usable - 35;
    bool is_long = local > most;
    if (is_long) {
        int64_t least = (scan->usable - 12) * 32 / 255 - 23;
        local = least + ((int64_t)length - least) % (scan->usable - 4);
        if (local > most) local = least;
    }
    if (local + (is_long ? 4 : 0) > end - at) return false;
    if (++scan->rows > scan->most_rows) return false;
    if (is_long && !(at = whole_record(scan, at, (int64_t)length, local))) return false;
    if (!has_fields(scan, at, (int64_t)length)) return false;
    int is_wanted = passes(scan, at, (int64_t)row);
    if (is_wanted < 0) return false;
    return !is_wanted || (added(scan, at, (int64_t)row) && scan->bytes <= scan->most_bytes);
}

/* Goes on to the page below that is next; after the last cell that is the one on the right. */
static bool descended(Scan *scan, Level *level) {
    const Byte *at = level->cells + 8;
    uint64_t row;
    if (level->at < level->count) {
        at = cell_of(scan, level);
        if (!at || !after_varint(at + 4, level->cells + scan->usable, &row)) return false;
    }
    level->at++;
    return entered(scan, big_endian(at, 4));
}

/* Reads until a block is full: 1, to the end: 0, or to what has to be left to SQLite: -1. */
int scan_step(Scan *scan) {
    while (scan->depth > 0) {
        Level *level = &scan->levels[scan->depth - 1];
        bool is_inner = *level->cells == INNER;
        if (level->at == level->count + is_inner) {
            scan->depth--;
        } else if (is_inner) {
            if (!descended(scan, level)) return -1;
        } else {
            if (!has_taken(scan, level)) return -1;
            level->at++;
            if (scan->table.height == BLOCK_ROWS) return 1;
        }
    }
    return 0;
}

int64_t scan_height(const Scan *scan) { return scan->table.height; }

int64_t scan_text_bytes(const Scan *scan) { return scan->text_bytes; }

int scan_take(Scan *scan, struct ArrowSchema *schema, struct ArrowArray *array) {
    return has_room(scan) ? arrow_table(&scan->table, schema, array) : -1;
}

void scan_close(Scan *scan) {
    if (!scan) return;
    for (int32_t n = 0; n < MOST_LEVELS; n++) free(scan->levels[n].page);
    free_columns(&scan->table);
    free(scan->seen);
    free(scan->tree.bytes);
    free(scan->chain.bytes);
    free(scan->record);
    free(scan->ranges);
    free(scan);
}

/* ---- the beginning ---- */

/* Whether the first 100 bytes are those of a file as SQLite usually writes it. */
static bool has_head(Scan *scan, int64_t size) {
    Byte head[100];
    if (!is_read(scan, head, sizeof head, 0) || memcmp(head, "SQLite format 3", 16) != 0) return false;
    int64_t page_size = big_endian(head + 16, 2);
    scan->page_size = page_size == 1 ? 65536 : page_size;
    scan->usable = scan->page_size - head[20];
    if (scan->page_size < 512 || scan->page_size & (scan->page_size - 1) || scan->usable < 480) return false;
    bool is_usual = head[18] <= 2 && head[19] <= 2 && head[21] == 64 && head[22] == 32 && head[23] == 32;
    bool has_utf8 = big_endian(head + 56, 4) == 1;
    scan->moves_pages = big_endian(head + 52, 4) != 0;
    scan->pages = size / scan->page_size;
    bool states_pages = big_endian(head + 24, 4) == big_endian(head + 92, 4);
    int64_t stated = big_endian(head + 28, 4);
    if (states_pages && stated && stated < scan->pages) scan->pages = stated;
    return is_usual && has_utf8;
}

static bool is_usable(Scan *scan, const Wanted *wanted) {
    if (wanted->field < -1 || wanted->field >= MOST_FIELDS || wanted->kind < 0 || wanted->kind >= KINDS) return false;
    if (wanted->field >= scan->fields) scan->fields = wanted->field + 1;
    return true;
}

/* Begins to read a table; NULL for what has to be left to SQLite. `filter` names a column of numbers that has
 * to lie in one of the ranges, which are sorted and apart; without ranges every row is wanted. */
Scan *scan_open(int descriptor, int64_t size, int64_t root, const Wanted *wanted, int32_t count,
                const Wanted *filter, const Range *ranges, int32_t range_count, int64_t most_rows,
                int64_t most_bytes) {
    Scan *scan = calloc(1, sizeof *scan);
    if (!scan) return NULL;
    scan->descriptor = descriptor;
    scan->most_rows = most_rows;
    scan->most_bytes = most_bytes;
    bool fits = count > 0 && count <= MOST_COLUMNS && range_count >= 0;
    if (!fits || !has_head(scan, size)) return scan_close(scan), NULL;
    for (int32_t n = 0; n < count; n++) {
        if (!is_usable(scan, &wanted[n])) return scan_close(scan), NULL;
        scan->wanted[n] = wanted[n];
        scan->table.columns[scan->table.width++] = (Column){.slot = n, .format = FORMATS[wanted[n].kind]};
    }
    scan->range_count = range_count;
    if (range_count) {
        if (!is_usable(scan, filter)) return scan_close(scan), NULL;
        scan->filter = *filter;
        if (!grown(&scan->ranges, (int64_t)range_count * (int64_t)sizeof *ranges)) return scan_close(scan), NULL;
        memcpy(scan->ranges, ranges, (size_t)range_count * sizeof *ranges);
    }
    scan->seen = calloc((size_t)(scan->pages / 8 + 1), 1);
    scan->tree.bytes = malloc((size_t)LONGEST_RUN);
    if (!scan->seen || !scan->tree.bytes || !entered(scan, root)) return scan_close(scan), NULL;
    return scan;
}
