/* A strict scanner of JSON; static, so that the compiler can make one loop of it and its caller.
 *
 * The text ends in zeros. A zero is allowed nowhere in JSON, so that no loop runs beyond the end
 * if each looks at a byte before it steps over it. Behind the text there is room to read whole words.
 * Functions that read return where they stopped, or NULL for "not for me".
 */
#ifndef CCL_BENCH_JSON_H
#define CCL_BENCH_JSON_H

#include "rows.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

typedef struct {
    const Byte *at;
    int64_t length;
    bool is_odd; /* has escapes */
} Text;

typedef struct {
    const Byte *at, *end;
    uint64_t digits; /* of the number without point and exponent; as far as they fit */
    int32_t count, fraction; /* digits in all, and after the point */
    bool is_negative, has_exponent;
} Number;

static inline bool is_space(Byte byte) {
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

static inline const Byte *after_space(const Byte *at) {
    if (!is_space(*at)) return at;
    if (!is_space(*++at)) return at;
#if defined(__SSE2__)
    const __m128i blank = _mm_set1_epi8(' '), feed = _mm_set1_epi8('\n');
    for (;; at += 16) { /* the two that Kineto writes; the loop below takes the others */
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        __m128i is_blank = _mm_or_si128(_mm_cmpeq_epi8(bytes, blank), _mm_cmpeq_epi8(bytes, feed));
        unsigned others = ~(unsigned)_mm_movemask_epi8(is_blank) & 0xFFFF;
        if (others) {
            at += __builtin_ctz(others);
            break;
        }
    }
#endif
    while (is_space(*at)) at++;
    return at;
}

/* How many bytes from `at` on are plain text: neither quote, backslash nor control character.
 * Sets `is_high` where one of them is no ASCII. */
static inline int64_t plain_bytes(const Byte *at, bool *is_high) {
    const Byte *start = at;
    unsigned high = 0;
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1F);
    for (;; at += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        __m128i is_end = _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash));
        is_end = _mm_or_si128(is_end, _mm_cmpeq_epi8(_mm_min_epu8(bytes, control), bytes));
        unsigned ends = (unsigned)_mm_movemask_epi8(is_end), beyond = (unsigned)_mm_movemask_epi8(bytes);
        high |= ends ? beyond & ((ends & -ends) - 1) : beyond;
        if (ends) {
            at += __builtin_ctz(ends);
            break;
        }
    }
#else
    for (; *at >= 0x20 && *at != '"' && *at != '\\'; at++) high |= *at & 0x80u;
#endif
    *is_high |= high != 0;
    return at - start;
}

static bool is_hexadecimal(Byte digit) {
    return (digit >= '0' && digit <= '9') || ((digit | 0x20) >= 'a' && (digit | 0x20) <= 'f');
}

/* The number that an escape such as \u00e9 at `at` states; -1 where it is none. */
static int32_t escaped_number(const Byte *at) {
    int32_t number = 0;
    if (at[0] != '\\' || at[1] != 'u') return -1;
    for (int digit = 2; digit < 6; digit++) {
        if (!is_hexadecimal(at[digit])) return -1;
        number = number << 4 | (at[digit] <= '9' ? at[digit] - '0' : (at[digit] | 0x20) - 'a' + 10);
    }
    return number;
}

static inline bool is_first_half(int32_t number) { return number >= 0xD800 && number <= 0xDBFF; }
static inline bool is_second_half(int32_t number) { return number >= 0xDC00 && number <= 0xDFFF; }

/* Reads an escape, from its backslash on. Half of a surrogate pair alone is left to the other decoder. */
static const Byte *after_escape(const Byte *at) {
    if (at[1] && strchr("\"\\/bfnrt", at[1])) return at + 2;
    int32_t number = escaped_number(at);
    if (is_first_half(number)) return is_second_half(escaped_number(at + 6)) ? at + 12 : NULL;
    return number < 0 || is_second_half(number) ? NULL : at + 6;
}

static Byte *put_character(Byte *to, int32_t number) {
    const int32_t more = number < 0x80 ? 0 : number < 0x800 ? 1 : number < 0x10000 ? 2 : 3;
    const Byte marks[] = {0, 0xC0, 0xE0, 0xF0};
    *to++ = (Byte)(marks[more] | number >> 6 * more);
    for (int32_t n = more - 1; n >= 0; n--) *to++ = (Byte)(0x80 | (number >> 6 * n & 0x3F));
    return to;
}

/* Puts the characters of a text that `after_text` has read in the place of their escapes, which are longer. */
static void unescape(Text *text) {
    static const char NAMED[] = "bfnrt", MEANT[] = "\b\f\n\r\t";
    const Byte *from = text->at, *end = from + text->length;
    Byte *to = (Byte *)text->at;
    while (from < end) {
        if (*from != '\\') {
            *to++ = *from++;
        } else if (from[1] != 'u') {
            const char *named = strchr(NAMED, from[1]);
            *to++ = named ? (Byte)MEANT[named - NAMED] : from[1];
            from += 2;
        } else {
            int32_t number = escaped_number(from);
            bool is_pair = is_first_half(number);
            if (is_pair) number = 0x10000 + ((number - 0xD800) << 10) + escaped_number(from + 6) - 0xDC00;
            to = put_character(to, number);
            from += is_pair ? 12 : 6;
        }
    }
    text->length = to - text->at;
    text->is_odd = false;
}

/* Reads a string from behind its first quote to behind its last. */
static const Byte *after_text(const Byte *at, Text *text, bool *is_high) {
    text->at = at;
    text->is_odd = false;
    for (;;) {
        at += plain_bytes(at, is_high);
        if (*at == '"') break;
        if (*at != '\\' || !(at = after_escape(at))) return NULL;
        text->is_odd = true;
    }
    text->length = at - text->at;
    return at + 1;
}

/* Length of the UTF-8 sequence at `at`, which holds no ASCII; 0 where it is none. */
static int sequence_length(const Byte *at) {
    Byte low = at[0] == 0xE0 ? 0xA0 : at[0] == 0xF0 ? 0x90 : 0x80;
    Byte most = at[0] == 0xED ? 0x9F : at[0] == 0xF4 ? 0x8F : 0xBF;
    int length = at[0] >= 0xC2 && at[0] <= 0xDF ? 2 : (at[0] & 0xF0) == 0xE0 ? 3 : 4;
    if (length == 4 && (at[0] < 0xF0 || at[0] > 0xF4)) return 0;
    if (at[1] < low || at[1] > most) return 0;
    for (int n = 2; n < length; n++)
        if ((at[n] & 0xC0) != 0x80) return 0;
    return length;
}

static bool is_utf8(const Text *text) {
    const Byte *end = text->at + text->length;
    for (const Byte *at = text->at; at < end;) {
        int length = *at < 0x80 ? 1 : sequence_length(at);
        if (!length) return false;
        at += length;
    }
    return true;
}

/* Reads a string that the other decoder makes an object of, so that it must be UTF-8. */
static const Byte *after_kept_text(const Byte *at, Text *text) {
    bool is_high = false;
    at = after_text(at, text, &is_high);
    return at && is_high && !is_utf8(text) ? NULL : at;
}

static inline bool is_digit(Byte byte) { return (Byte)(byte - '0') < 10; }

static inline const Byte *after_digits(const Byte *at, Number *number) {
    const Byte *start = at;
    uint64_t digits = number->digits;
    for (; is_digit(*at); at++) digits = digits * 10 + (uint64_t)(*at - '0');
    number->digits = digits;
    number->count += (int32_t)(at - start > MOST_DIGITS ? MOST_DIGITS : at - start);
    return at;
}

static inline const Byte *after_number(const Byte *at, Number *number) {
    *number = (Number){.at = at};
    if (*at == '-') number->is_negative = true, at++;
    if (!is_digit(*at) || (*at == '0' && is_digit(at[1]))) return NULL;
    at = after_digits(at, number);
    if (*at == '.') {
        int32_t before = number->count;
        if (!is_digit(at[1])) return NULL;
        at = after_digits(at + 1, number);
        number->fraction = number->count - before;
    }
    if ((*at | 0x20) == 'e') {
        number->has_exponent = true;
        at += at[1] == '+' || at[1] == '-' ? 2 : 1;
        if (!is_digit(*at)) return NULL;
        while (is_digit(*at)) at++;
    }
    return number->end = at;
}

static const Byte *after_literal(const Byte *at) {
    if (*at == 't') return memcmp(at, "true", 4) == 0 ? at + 4 : NULL;
    if (*at == 'f') return memcmp(at, "false", 5) == 0 ? at + 5 : NULL;
    return memcmp(at, "null", 4) == 0 ? at + 4 : NULL;
}

/* Reads a key of an object with its colon, up to the value. */
static const Byte *after_key(const Byte *at, Text *key, bool *is_high) {
    if (*at != '"' || !(at = after_text(at + 1, key, is_high))) return NULL;
    if (*at != ':') at = after_space(at);
    return *at == ':' ? after_space(at + 1) : NULL;
}

static const Byte *after_scalar(const Byte *at) {
    Number number;
    Text text;
    bool is_high = false;
    if (*at == '"') return after_text(at + 1, &text, &is_high);
    return *at == '-' || is_digit(*at) ? after_number(at, &number) : after_literal(at);
}

/* Reads any value that is of no interest. A bit of `objects` says for each open bracket what it is. */
static const Byte *after_any(const Byte *at) {
    uint64_t objects = 0;
    Text key;
    bool is_high = false;
    for (int depth = 0;;) {
        if (*at == '[' || *at == '{') {
            bool is_object = *at == '{';
            if (++depth == MOST_DEPTH) return NULL;
            objects = objects << 1 | is_object;
            at = after_space(at + 1);
            if (*at != (is_object ? '}' : ']')) {
                if (is_object && !(at = after_key(at, &key, &is_high))) return NULL;
                continue;
            }
        } else {
            at = after_scalar(at);
            if (!at || !depth) return at;
            at = after_space(at);
        }
        while (*at == (objects & 1 ? '}' : ']')) {
            objects >>= 1;
            if (!--depth) return at + 1;
            at = after_space(at + 1);
        }
        if (*at != ',') return NULL;
        at = after_space(at + 1);
        if (objects & 1 && !(at = after_key(at, &key, &is_high))) return NULL;
    }
}

#endif
