/* The rows of a table of an SQLite database to columns, read from the pages of the file.
 * https://www.sqlite.org/fileformat2.html
 *
 * What it reads, SQLite reads to the same values in the same order. With anything unusual in the file, in a
 * page or in a wanted value, and without memory, the table is refused, and SQLite itself has to read it.
 * A page is read once: whatever a page points to, reading ends. Numbers of rows ascend: SQLite may look for one.
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

/* A wanted column, as library.py mirrors it. */
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
    int64_t first, count; /* number of the first page, and pages */
    int64_t used; /* pages that were asked for */
    int64_t next; /* pages that are read at the next time */
} Run;

typedef struct {
    Byte *page; /* of a level above the rows: a copy */
    const Byte *cells;
    int32_t count, at;
    int64_t left; /* the last number of a row in the page that was gone to */
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
    Wanted filter, brief; /* a column of numbers, and one of texts or blobs that are there and short */
    int64_t longest_brief; /* -1 for no such column */
    Range *ranges;
    int32_t range_count, fields; /* fields of a record that are looked at */
    Table table;
    int64_t rows, most_rows, text_bytes, bytes, most_bytes; /* `bytes` are those of texts and blobs */
    Byte *record; /* one that goes on in further pages */
    uint32_t types[MOST_FIELDS];
    int64_t places[MOST_FIELDS];
    int32_t present; /* fields of the record that were looked at: it may have fewer than are wanted */
    int64_t last; /* every number of a row from here on is larger, if any row or page is behind */
    bool has_last;
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

static int64_t longest_run(const Scan *scan) {
    return LONGEST_RUN > scan->page_size ? LONGEST_RUN / scan->page_size : 1;
}

static bool has_bytes(const Scan *scan, Run *run) {
    if (!run->bytes) run->bytes = malloc((size_t)(longest_run(scan) * scan->page_size) + PADDING);
    return run->bytes;
}

/* A page that was not read before; the run goes on growing while pages follow each other. */
static const Byte *page_of(Scan *scan, Run *run, int64_t number) {
    int64_t lock_page = INT64_C(0x40000000) / scan->page_size + 1;
    if (number < 2 || number > scan->pages || number == lock_page) return NULL;
    if (scan->seen[number >> 3] >> (number & 7) & 1) return NULL;
    scan->seen[number >> 3] |= (Byte)(1 << (number & 7));
    if (number < run->first || number >= run->first + run->count) {
        bool is_next = number == run->first + run->count;
        run->next = is_next && 2 * run->used >= run->count ? 2 * run->next : run->next / 2;
        if (run->next > longest_run(scan)) run->next = longest_run(scan);
        if (run->next < 1) run->next = 1;
        run->first = number;
        run->used = 1;
        run->count = run->next < scan->pages - number + 1 ? run->next : scan->pages - number + 1;
        if (is_read(scan, run->bytes, run->count * scan->page_size, (number - 1) * scan->page_size))
            return run->bytes;
        run->count = 0;
        return NULL;
    }
    run->used++;
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
    if (!has_bytes(scan, &scan->chain) || !grown(&scan->record, length + PADDING)) return NULL;
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

/* Bytes of a value of a type below 12; of the two that no file holds, more than there can be. */
static const uint32_t SIZES[] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, UINT32_MAX, UINT32_MAX};

static inline int64_t size_of(uint32_t type) { return type < 12 ? SIZES[type] : (type - 12) / 2; }

/* The head of a record: where the type of the next field stands, and its value. */
typedef struct {
    const Byte *at, *end;
    int64_t place, length;
} Head;

static bool has_head_of(Head *head, const Byte *record, int64_t length) {
    uint64_t size;
    const Byte *at = after_varint(record, record + length, &size);
    if (!at || size > (uint64_t)length || size > LONGEST_HEAD) return false;
    if (record + size <= at) return false; /* a head without fields is damage */
    *head = (Head){at, record + size, (int64_t)size, length};
    return true;
}

/* Notes types and places of as many fields; false for a record that is damaged. */
static inline bool has_fields(Scan *scan, Head *head, int32_t count) {
    const Byte *at = head->at, *end = head->end;
    int64_t place = head->place;
    int32_t n = scan->present;
    for (; n < count && at < end; n++) {
        uint64_t type = *at++;
        if (type >= 0x80 && (!(at = after_varint(at - 1, end, &type)) || type > INT32_MAX)) return false;
        scan->types[n] = (uint32_t)type;
        scan->places[n] = place;
        place += size_of((uint32_t)type);
    }
    head->at = at;
    head->place = place;
    scan->present = n;
    return at == end ? place == head->length : place <= head->length;
}

static inline bool is_whole(uint32_t type) { return 0x37e >> (type < 31 ? type : 31) & 1; }

/* A whole number; what follows it is read with it. */
static inline int64_t whole_at(const Byte *at, uint32_t type) {
    uint64_t word;
    if (type >= 8) return (int64_t)type - 8;
    memcpy(&word, at, sizeof word);
    return (int64_t)__builtin_bswap64(word) >> (64 - 8 * SIZES[type]);
}

static inline double real_at(const Byte *at) {
    int64_t bits = whole_at(at, 6);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

enum meaning { ABSENT, PRESENT, UNUSUAL };

static enum meaning real_as_whole(double value, uint64_t *found) {
    if (!(fabs(value) < 0x1p63) || value != trunc(value)) return ABSENT;
    *found = (uint64_t)(int64_t)value;
    return PRESENT;
}

static enum meaning as_real(double value, uint64_t *found) {
    if (!isfinite(value)) return ABSENT;
    memcpy(found, &value, sizeof value);
    return PRESENT;
}

/* What a field means in a column of numbers; -1 is the number of the row. */
static inline enum meaning number_in(Scan *scan, const Wanted *wanted, const Byte *record, int64_t row,
                                     uint64_t *found) {
    bool is_row = wanted->field < 0;
    if (!is_row && wanted->field >= scan->present) return wanted->is_filled ? UNUSUAL : ABSENT;
    uint32_t type = is_row ? 6 : scan->types[wanted->field];
    const Byte *at = is_row ? NULL : record + scan->places[wanted->field];
    if (is_whole(type)) {
        int64_t whole = is_row ? row : whole_at(at, type);
        *found = (uint64_t)whole;
        if (wanted->kind == WHOLE && !wanted->is_real) return PRESENT;
        return wanted->kind == WHOLE ? real_as_whole((double)whole, found) : as_real((double)whole, found);
    }
    if (type == 7) return wanted->kind == WHOLE ? real_as_whole(real_at(at), found) : as_real(real_at(at), found);
    if (type >= 13 && type % 2) scan->text_bytes += size_of(type), scan->bytes += size_of(type);
    return ABSENT;
}

/* Whether the row is wanted: 1 if it is, 0 if not, -1 for a value that SQLite would convert. */
static inline int passes(const Scan *scan, const Byte *record, int64_t row) {
    int32_t field = scan->filter.field;
    int64_t number = row;
    if (field >= 0) {
        if (field >= scan->present) return scan->filter.is_filled ? -1 : 0;
        uint32_t type = scan->types[field];
        if (!is_whole(type)) return type ? -1 : 0;
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

/* Whether a text or blob is there and short: 1 if it is, 0 if not, -1 where SQLite would count characters. */
static inline int is_brief(const Scan *scan) {
    int32_t field = scan->brief.field;
    if (field < 0) return -1;
    if (field >= scan->present) return scan->brief.is_filled ? -1 : 0;
    uint32_t type = scan->types[field];
    if (type == 0) return 0;
    if (type < 12) return -1;
    if (size_of(type) <= scan->longest_brief) return 1;
    return type % 2 ? -1 : 0;
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
    uint32_t type = scan->types[wanted->field];
    int64_t size = size_of(type);
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
        bool is_bytes = scan->wanted[n].kind >= TEXT;
        enum meaning meaning;
        if (is_bytes) {
            meaning = added_bytes(scan, n, record);
            column->values[height + 1] = (uint64_t)column->used;
        } else {
            column->values[height] = 0;
            meaning = number_in(scan, &scan->wanted[n], record, row, &column->values[height]);
        }
        if (meaning == UNUSUAL) return false;
        column->valid[height >> 3] |= (Byte)((meaning == PRESENT) << (height & 7));
    }
    table->height++;
    return true;
}

/* Whether a number may come here; then only larger ones may follow. */
static inline bool ascends(Scan *scan, int64_t row, bool may_be_last) {
    if (scan->has_last && (may_be_last ? row < scan->last : row <= scan->last)) return false;
    scan->last = row;
    scan->has_last = true;
    return true;
}

/* Reads the row that a leaf has come to. */
static bool has_taken(Scan *scan, const Level *level) {
    const Byte *end = level->cells + scan->usable, *at = cell_of(scan, level);
    uint64_t length, row;
    const Byte *cell = at;
    if (!at || !(at = after_varint(at, end, &length))) return false;
    if (at - cell > 8) return false; /* of the ninth byte of a length SQLite takes seven bits */
    if (!(at = after_varint(at, end, &row))) return false;
    if (length < 1 || length > (uint64_t)LONGEST_RECORD || !ascends(scan, (int64_t)row, false)) return false;
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
    Head head;
    scan->present = 0;
    if (!has_head_of(&head, at, (int64_t)length)) return false;
    if (scan->range_count) {
        if (!has_fields(scan, &head, scan->filter.field + 1)) return false;
        int is_wanted = passes(scan, at, (int64_t)row);
        if (is_wanted <= 0) return is_wanted == 0;
    }
    if (scan->longest_brief >= 0) {
        if (!has_fields(scan, &head, scan->brief.field + 1)) return false;
        int is_wanted = is_brief(scan);
        if (is_wanted <= 0) return is_wanted == 0;
    }
    return has_fields(scan, &head, scan->fields) && added(scan, at, (int64_t)row) && scan->bytes <= scan->most_bytes;
}

/* Leaves the page of one cell and goes on to that of the next; after the last cell that is the one on the right. */
static bool descended(Scan *scan, Level *level) {
    const Byte *at = level->cells + 8;
    if (level->at > 0 && !ascends(scan, level->left, true)) return false;
    if (level->at < level->count) {
        uint64_t row;
        at = cell_of(scan, level);
        if (!at || !after_varint(at + 4, level->cells + scan->usable, &row)) return false;
        level->left = (int64_t)row;
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

/* Begins to read a table; NULL for what has to be left to SQLite. `filters` names a column of numbers that has
 * to lie in one of the ranges, which are sorted and apart, if there are any, and one of texts or blobs, which
 * has to be there with at most so many bytes, unless that is -1. */
Scan *scan_open(int descriptor, int64_t size, int64_t root, const Wanted *wanted, int32_t count,
                const Wanted filters[2], const Range *ranges, int32_t range_count, int64_t longest_brief,
                int64_t most_rows, int64_t most_bytes) {
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
        if (!is_usable(scan, &filters[0])) return scan_close(scan), NULL;
        scan->filter = filters[0];
        if (!grown(&scan->ranges, (int64_t)range_count * (int64_t)sizeof *ranges)) return scan_close(scan), NULL;
        memcpy(scan->ranges, ranges, (size_t)range_count * sizeof *ranges);
    }
    scan->longest_brief = longest_brief;
    scan->brief = filters[1];
    if (longest_brief >= 0 && !is_usable(scan, &filters[1])) return scan_close(scan), NULL;
    scan->seen = calloc((size_t)(scan->pages / 8 + 1), 1);
    if (!scan->seen || !has_bytes(scan, &scan->tree) || !entered(scan, root)) return scan_close(scan), NULL;
    return scan;
}
