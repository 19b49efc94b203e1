/* Every size, count and depth that the reader of Kineto events is bounded by. Beyond one of them it refuses. */
#ifndef CCL_BENCH_LIMITS_H
#define CCL_BENCH_LIMITS_H

#include "bounds.h"

#define MOST_SLOTS 64 /* values of an event; a bit of a word for each */
#define MOST_TABLES 16
#define MOST_WORDS 128 /* of a role: those given, and keys that are met */
#define PLACES 512 /* of words, by hash; never full */
#define MOST_DEPTH 64 /* of values of no interest; a bit of a word for each bracket */
#define MOST_DIGITS 300 /* a longer number may be no finite double */
#define MOST_TEXTS INT32_MAX
#define LATEST_NS (UINT64_C(1) << 61) /* as in trace/values.py */

#define LONGEST_WORD (PADDING - 8)

_Static_assert(MOST_SLOTS <= 64 && MOST_DEPTH <= 64, "a word has 64 bits");
_Static_assert(MOST_WORDS < UINT8_MAX && MOST_WORDS < PLACES, "a place holds the number of a word + 1");

#endif
