/* Kineto events to the columns of tables, without making an object of anything.
 *
 * A strict reader of JSON: what it takes, decoding.py takes with the same result.
 * A piece with anything unusual in it is refused whole, and nothing of it is kept.
 * See json.h for how it reads.
 */
#include "json.h"

#include <math.h>
#include <stdlib.h>

typedef struct Entry {
    Word word;
    uint64_t first, last;
    Byte text[PADDING];
    uint64_t mask; /* of the bytes in first and last that belong to the word */
    struct Entry *next; /* what followed it last: writers keep the order of keys */
} Entry;

typedef struct {
    Entry entries[MOST_WORDS];
    int32_t count;
    uint8_t places[PLACES]; /* number of an entry + 1; 0 is free */
    Entry *first; /* of the last object */
} Words;

/* One event while it is read. */
typedef struct {
    uint64_t present, odd, stated; /* a bit for each slot */
    uint64_t values[MOST_SLOTS];
    Text texts[MOST_SLOTS];
    bool has_arguments, states_twice;
} Event;

typedef struct {
    Words event_keys, argument_keys, categories, prefixes;
    uint8_t kinds[MOST_SLOTS];
    Table tables[MOST_TABLES];
    int32_t table_count, ignored; /* `ignored` takes the categories that are not known */
    Texts texts;
    int64_t *calls; /* where each communication call of the piece begins and ends */
    int64_t call_count, call_room;
    int64_t events, twice; /* `twice` of the events state a key two times */
    Byte *buffer;
    int64_t buffer_room;
    Event event;
} Rows;

/* ---- words that are known beforehand ---- */

static inline uint32_t place_of(uint64_t first, uint64_t last, int64_t length) {
    uint64_t mixed = (first ^ (last << 1 | last >> 63) ^ (uint64_t)length) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(mixed >> 55); /* 9 bits for 512 places */
}

static Entry *known(Words *words, const Byte *at, int64_t length) {
    uint64_t first = first_of(at, length), last = last_of(at, length);
    for (uint32_t place = place_of(first, last, length); words->places[place]; place = (place + 1) % PLACES) {
        Entry *entry = &words->entries[words->places[place] - 1];
        if (entry->first == first && entry->last == last && entry->word.length == length &&
            (length <= 16 || memcmp(entry->text, at, (size_t)length) == 0))
            return entry;
    }
    return NULL;
}

static bool add_word(Words *words, const Word *word) {
    if (words->count == MOST_WORDS || word->length < 0 || word->length > LONGEST_WORD) return false;
    Entry *entry = &words->entries[words->count++];
    memcpy(entry->text, word->text, (size_t)word->length);
    entry->word = *word;
    entry->word.text = NULL;
    entry->first = first_of(entry->text, word->length);
    entry->last = last_of(entry->text, word->length);
    entry->mask = word->length >= 8 ? UINT64_MAX : bit(8 * word->length) - 1;
    uint32_t place = place_of(entry->first, entry->last, word->length);
    while (words->places[place]) place = (place + 1) % PLACES;
    words->places[place] = (uint8_t)words->count;
    return true;
}

/* Whether the text of an entry, and a quote behind it, stand at `at`. */
static inline bool is_at(const Entry *entry, const Byte *at) {
    int64_t length = entry->word.length, before_last = length >= 8 ? length - 8 : 0;
    return at[length] == '"' && (word_at(at) & entry->mask) == entry->first &&
           (word_at(at + before_last) & entry->mask) == entry->last &&
           (length <= 16 || memcmp(at, entry->text, (size_t)length) == 0);
}

/* ---- values ---- */

static const double POWERS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
static const uint64_t WHOLE_POWERS[] = {1, 10, 100, 1000};

static inline bool is_whole(const Number *number) { return !number->fraction && !number->has_exponent; }

/* Whether the other decoder takes a number at all: it must be a finite double, or whole. */
static bool is_in_range(const Number *number) {
    if (!number->has_exponent) return number->count < MOST_DIGITS;
    char *end;
    double real = strtod((const char *)number->at, &end);
    return (const Byte *)end == number->end && isfinite(real);
}

static inline void keep(Event *event, int32_t slot, uint64_t value) {
    event->values[slot] = value;
    event->present |= bit(slot);
}

static inline void keep_whole(Event *event, int32_t slot, const Number *number) {
    bool is_small = number->count < 20 && number->digits <= INT64_MAX;
    if (!is_whole(number) || (!is_small && number->is_negative))
        event->odd |= bit(slot);
    else if (is_small) /* a larger one is no id that a column can hold, and becomes null */
        keep(event, slot, number->is_negative ? 0 - number->digits : number->digits);
}

/* Keeps decimal microseconds as nanoseconds, if not a digit is lost. */
static inline void keep_time(Event *event, int32_t slot, const Number *number) {
    uint64_t ns = number->digits;
    bool is_odd = number->has_exponent || number->count > 19; /* 19 digits fit */
    if (number->fraction <= 3) {
        uint64_t power = WHOLE_POWERS[3 - number->fraction];
        is_odd |= ns >= LATEST_NS / power;
        ns *= power;
    } else {
        for (int32_t n = number->fraction; n > 3; n--, ns /= 10) is_odd |= ns % 10 != 0;
    }
    if (is_odd || ns >= LATEST_NS)
        event->odd |= bit(slot);
    else
        keep(event, slot, number->is_negative ? 0 - ns : ns);
}

static void keep_real(Event *event, int32_t slot, const Number *number) {
    double real;
    uint64_t value;
    if (number->count < 20 && number->digits < bit(53) && !number->has_exponent) {
        real = (double)number->digits / POWERS[number->fraction]; /* both exact, so rounded once */
        real = number->is_negative ? -real : real;
    } else {
        char *end; /* stops short in a locale without decimal points */
        real = strtod((const char *)number->at, &end);
        if ((const Byte *)end != number->end || !(fabs(real) < 0x1p63)) {
            event->odd |= bit(slot);
            return;
        }
    }
    memcpy(&value, &real, sizeof value);
    keep(event, slot, value);
}

static const Byte *keep_number(Event *event, const Word *word, const Byte *at) {
    Number number;
    at = after_number(at, &number);
    if (!at || ((number.has_exponent || number.count > 18) && !is_in_range(&number))) return NULL;
    if (word->kind == WHOLE) keep_whole(event, word->slot, &number);
    if (word->kind == TIME) keep_time(event, word->slot, &number);
    if (word->kind == REAL) keep_real(event, word->slot, &number);
    return at;
}

/* Reads a value that may be any scalar, as a time neither true nor false; one that is no number is odd, null
 * is absent. */
static const Byte *after_number_or_scalar(Event *event, const Word *word, const Byte *at) {
    Text text;
    if (*at == '-' || is_digit(*at)) return keep_number(event, word, at);
    if (*at == 'n') return after_literal(at);
    event->odd |= bit(word->slot);
    if (*at == '"') return after_kept_text(at + 1, &text);
    return word->kind == TIME ? NULL : after_literal(at);
}

static const Byte *after_texts(Event *event, const Word *word, const Byte *at) {
    Text *text = &event->texts[word->slot];
    if (*at == 'n' && word->kind == TEXT_OR_NULL) return after_literal(at);
    if (*at != '"' || !(at = after_kept_text(at + 1, text))) return NULL;
    event->present |= bit(word->slot);
    if (text->is_odd) unescape(text);
    return at;
}

/* Reads a list of scalars and keeps the product of whole ones; an empty list is absent. */
static const Byte *after_list(Event *event, const Word *word, const Byte *at) {
    const Word element = {.kind = word->kind == PRODUCT ? WHOLE : SCALAR, .slot = word->slot};
    int64_t product = 1;
    bool is_known = true;
    if (*at != '[') return *at == '"' || *at == 'n' ? after_number_or_scalar(event, word, at) : NULL;
    at = after_space(at + 1);
    if (*at == ']') return at + 1;
    for (;; at = after_space(at + 1)) {
        event->present &= ~bit(word->slot);
        if (!(at = after_number_or_scalar(event, &element, at))) return NULL;
        is_known &= (event->present & bit(word->slot)) != 0;
        is_known = is_known && !__builtin_mul_overflow(product, (int64_t)event->values[word->slot], &product);
        at = after_space(at);
        if (*at != ',') break;
    }
    if (!is_known) event->odd |= bit(word->slot);
    keep(event, word->slot, (uint64_t)product);
    return *at == ']' ? at + 1 : NULL;
}

static const Byte *after_value(Event *event, const Word *word, const Byte *at) {
    if (word->kind == ANY) return after_any(at);
    event->states_twice |= (event->stated & bit(word->slot)) != 0; /* of such a key, the last counts */
    event->stated |= bit(word->slot);
    event->present &= ~bit(word->slot);
    event->odd &= ~bit(word->slot);
    if (word->kind <= TEXT_OR_NULL) return after_texts(event, word, at);
    if (word->kind == PRODUCT || word->kind == LIST) return after_list(event, word, at);
    return after_number_or_scalar(event, word, at);
}

/* ---- events ---- */

static const Byte *after_object(Rows *rows, Words *words, const Byte *at);

static const Byte *after_arguments(Rows *rows, const Byte *at) {
    if (rows->event.has_arguments) return NULL; /* twice: the last would have to replace the first */
    rows->event.has_arguments = true;
    if (*at == '{') return after_object(rows, &rows->argument_keys, at);
    return *at == 'n' ? after_literal(at) : NULL;
}

/* Reads a key with its colon and finds what it is. A key met for the first time is remembered as one of
 * no interest, if there is room, so that it is recognised like the others. */
static const Byte *after_new_key(Words *words, const Byte *at, Entry **entry) {
    bool is_high = false;
    Text key;
    if (!(at = after_key(at, &key, &is_high)) || is_high || key.is_odd) return NULL;
    *entry = known(words, key.at, key.length);
    if (*entry || key.length > LONGEST_WORD) return at;
    const Word word = {.text = (const char *)key.at, .length = (int32_t)key.length, .kind = ANY};
    if (add_word(words, &word)) *entry = &words->entries[words->count - 1];
    return at;
}

/* Reads a key as `after_new_key` does. It is mostly the one that was there the last time. */
static inline const Byte *after_known_key(Words *words, const Byte *at, Entry **entry) {
    if (!*entry || *at != '"' || !is_at(*entry, at + 1)) return after_new_key(words, at, entry);
    at += (*entry)->word.length + 2;
    if (*at != ':') at = after_space(at);
    return *at == ':' ? after_space(at + 1) : NULL;
}

/* Reads an object, of which the values of `words` are kept. */
static const Byte *after_object(Rows *rows, Words *words, const Byte *at) {
    Entry **next = &words->first;
    at = after_space(at + 1);
    if (*at == '}') return at + 1;
    for (;; at = after_space(at + 1)) {
        Entry *entry = *next;
        if (!(at = after_known_key(words, at, &entry))) return NULL;
        if (entry && entry->word.kind == ARGUMENTS)
            at = after_arguments(rows, at);
        else
            at = entry ? after_value(&rows->event, &entry->word, at) : after_any(at);
        if (!at) return NULL;
        if (entry) {
            *next = entry;
            next = &entry->next;
        }
        if (*at != ',') at = after_space(at);
        if (*at != ',') return *at == '}' ? at + 1 : NULL;
    }
}

static bool has_room(Table *table) {
    if (table->height < table->room) return true;
    int64_t room = table->room ? 2 * table->room : 1024;
    for (int32_t n = 0; n < table->width; n++) {
        Column *column = &table->columns[n];
        if (!grown(&column->values, room * 8 + PADDING)) return false;
        if (!grown(&column->valid, room / 8 + PADDING)) return false;
    }
    table->room = room;
    return true;
}

static bool add_row(Rows *rows, Table *table) {
    Event *event = &rows->event;
    if (!has_room(table)) return false;
    int64_t row = table->height;
    for (int32_t n = 0; n < table->width; n++) {
        Column *column = &table->columns[n];
        int32_t slot = column->slot;
        uint64_t is_present = event->present >> slot & 1;
        if (event->odd >> slot & 1) return false;
        if (rows->kinds[slot] <= TEXT_OR_NULL && is_present) {
            int64_t number = texts_number(&rows->texts, event->texts[slot].at, event->texts[slot].length);
            if (number < 0) return false;
            event->values[slot] = (uint64_t)number;
        }
        column->values[row] = is_present ? event->values[slot] : 0;
        Byte *valid = &column->valid[row >> 3];
        *valid = (Byte)((*valid & ~(1u << (row & 7))) | (unsigned)(is_present << (row & 7)));
    }
    table->height = row + 1;
    return true;
}

static bool has_call_prefix(const Rows *rows, const Text *name) {
    for (int32_t n = 0; n < rows->prefixes.count; n++) {
        const Entry *prefix = &rows->prefixes.entries[n];
        if (name->length >= prefix->word.length &&
            memcmp(name->at, prefix->text, (size_t)prefix->word.length) == 0)
            return true;
    }
    return false;
}

static bool is_call(const Rows *rows, int32_t rule) {
    const Event *event = &rows->event;
    if (rule == CALL_BY_NAME) return event->present & bit(NAME) && has_call_prefix(rows, &event->texts[NAME]);
    return rule == CALL_BY_COLLECTIVE && event->present & bit(COLLECTIVE) && event->texts[COLLECTIVE].length;
}

static bool add_call(Rows *rows, const Byte *begin, const Byte *end) {
    if (rows->call_count == rows->call_room) {
        int64_t room = rows->call_room ? 2 * rows->call_room : 256;
        if (!grown(&rows->calls, room * 2 * (int64_t)sizeof *rows->calls)) return false;
        rows->call_room = room;
    }
    rows->calls[2 * rows->call_count] = begin - rows->buffer;
    rows->calls[2 * rows->call_count++ + 1] = end - rows->buffer;
    return true;
}

/* Puts the event that was read where it belongs. */
static bool add_event(Rows *rows, const Byte *begin, const Byte *end) {
    Event *event = &rows->event;
    const Text *phase = &event->texts[PHASE], *category = &event->texts[CATEGORY_NAME];
    rows->events++;
    rows->twice += event->states_twice;
    if (!(event->present & bit(PHASE)) || !phase->length) return false;
    if (phase->length != 1) return true;
    int which = *phase->at == 'X' ? 0 : *phase->at == 's' ? 1 : *phase->at == 'f' ? 2 : -1;
    if (which < 0) return true;
    bool is_named = event->present >> CATEGORY_NAME & 1;
    const Entry *entry = is_named ? known(&rows->categories, category->at, category->length) : NULL;
    int32_t table = entry ? entry->word.tables[which] : which ? -1 : rows->ignored;
    if (table < 0) return true;
    if (entry && (!(event->present & bit(NAME)) || !event->texts[NAME].length)) return false;
    if (!add_row(rows, &rows->tables[table])) return false;
    return which || !entry || !is_call(rows, entry->word.rule) || add_call(rows, begin, end);
}

/* Reads events up to the end of the text or of their array. */
static const Byte *after_events(Rows *rows, const Byte *at, const Byte *end, bool must_end) {
    if (at == end || *at == ']') return at == end && must_end ? NULL : at;
    for (;; at = after_space(at + 1)) {
        const Byte *begin = at;
        rows->event.present = rows->event.odd = rows->event.stated = 0;
        rows->event.has_arguments = rows->event.states_twice = false;
        if (*at != '{' || !(at = after_object(rows, &rows->event_keys, at))) return NULL;
        if (!add_event(rows, begin, at)) return NULL;
        at = after_space(at);
        if (*at == ',') continue;
        return *at == ']' || (at == end && !must_end) ? at : NULL;
    }
}

static bool is_buffered(Rows *rows, const char *piece, int64_t length) {
    if (rows->buffer_room < length + PADDING) {
        int64_t room = length + length / 4 + PADDING;
        if (!grown(&rows->buffer, room)) return false;
        rows->buffer_room = room;
    }
    memcpy(rows->buffer, piece, (size_t)length);
    memset(rows->buffer + length, 0, PADDING);
    return true;
}

/* ---- what library.py calls ---- */

void rows_close(Rows *rows) {
    if (!rows) return;
    for (int32_t n = 0; n < rows->table_count; n++) free_columns(&rows->tables[n]);
    texts_free(&rows->texts);
    free(rows->calls);
    free(rows->buffer);
    free(rows);
}

static bool is_slot(int32_t slot) { return slot >= 0 && slot < MOST_SLOTS; }

/* Words, then for each table the number of its columns and their slots. The last table takes
 * the categories that are not known. */
Rows *rows_open(const Word *words, int32_t word_count, const int32_t *layout, int32_t table_count) {
    Rows *rows = calloc(1, sizeof *rows);
    if (!rows || table_count < 1 || table_count > MOST_TABLES) return rows_close(rows), NULL;
    Words *roles[] = {&rows->event_keys, &rows->argument_keys, &rows->categories, &rows->prefixes};
    for (int32_t n = 0; n < word_count; n++) {
        const Word *word = &words[n];
        if (word->role < 0 || word->role >= ROLES || !is_slot(word->slot)) return rows_close(rows), NULL;
        if (!add_word(roles[word->role], word)) return rows_close(rows), NULL;
        if (word->role <= ARGUMENT_KEY) rows->kinds[word->slot] = (uint8_t)word->kind;
    }
    for (; rows->table_count < table_count; rows->table_count++) {
        Table *table = &rows->tables[rows->table_count];
        if (*layout < 0 || *layout > MOST_COLUMNS) return rows_close(rows), NULL;
        table->width = *layout++;
        for (int32_t n = 0; n < table->width; n++, layout++) {
            if (!is_slot(*layout)) return rows_close(rows), NULL;
            table->columns[n] = (Column){.slot = *layout, .format = rows->kinds[*layout] == REAL ? 'g' : 'l'};
        }
    }
    rows->ignored = table_count - 1;
    return rows;
}

/* Takes the events of a piece: 0 if it is made of events, where the array of events ends behind
 * its bracket if it does, or -1 if nothing was taken. */
int64_t rows_feed(Rows *rows, const char *piece, int64_t length, int32_t must_end) {
    int64_t heights[MOST_TABLES], events = rows->events, twice = rows->twice;
    rows->call_count = 0;
    if (!is_buffered(rows, piece, length)) return -1;
    for (int32_t n = 0; n < rows->table_count; n++) heights[n] = rows->tables[n].height;
    const Byte *at = after_events(rows, after_space(rows->buffer), rows->buffer + length, must_end);
    if (at) return *at == ']' ? at - rows->buffer + 1 : 0;
    for (int32_t n = 0; n < rows->table_count; n++) rows->tables[n].height = heights[n];
    rows->events = events;
    rows->twice = twice;
    rows->call_count = 0;
    return -1;
}

/* Where the communication calls of the last piece stand in it: begin, end, begin, end, ... */
int64_t rows_calls(const Rows *rows, const int64_t **calls) {
    *calls = rows->calls;
    return rows->call_count;
}

int64_t rows_events(const Rows *rows) { return rows->events; }

int64_t rows_twice(const Rows *rows) { return rows->twice; }

/* Hands the rows of a table over to Arrow, and with them the memory; 0 if that went well. */
int rows_take(Rows *rows, int32_t table, struct ArrowSchema *schema, struct ArrowArray *array) {
    return arrow_table(&rows->tables[table], schema, array);
}

int rows_texts(const Rows *rows, struct ArrowSchema *schema, struct ArrowArray *array) {
    return arrow_texts(rows->texts.ends, rows->texts.bytes, rows->texts.count, schema, array);
}
