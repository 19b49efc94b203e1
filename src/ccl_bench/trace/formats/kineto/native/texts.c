/* Texts numbered as they come: each name of a file is kept once. */
#include "texts.h"

#include <stdlib.h>

static uint64_t hash_of(const Byte *at, int64_t length) {
    uint64_t hash = (uint64_t)length;
    for (; length > 8; at += 8, length -= 8)
        hash = ((hash ^ word_at(at)) * UINT64_C(0x9E3779B97F4A7C15)) ^ (hash >> 29);
    hash = (hash ^ first_of(at, length)) * UINT64_C(0xD6E8FEB86659FD93);
    return hash ^ (hash >> 32);
}

static bool rehashed(Texts *texts) {
    uint64_t places = texts->mask ? 2 * (texts->mask + 1) : 1024;
    uint32_t *found = calloc(places, sizeof *found);
    if (!found) return false;
    free(texts->places);
    texts->places = found;
    texts->mask = places - 1;
    for (int64_t number = 0; number < texts->count; number++) {
        uint64_t place = texts->hashes[number] & texts->mask;
        while (found[place]) place = (place + 1) & texts->mask;
        found[place] = (uint32_t)number + 1;
    }
    return true;
}

static bool has_room(Texts *texts, int64_t length) {
    if (texts->count == texts->most) {
        int64_t most = texts->most ? 2 * texts->most : 512;
        if (!grown(&texts->ends, (most + 1) * (int64_t)sizeof *texts->ends)) return false;
        if (!grown(&texts->hashes, most * (int64_t)sizeof *texts->hashes)) return false;
        texts->most = most;
        texts->ends[0] = 0;
    }
    if (texts->room - texts->used <= length) {
        int64_t room = 2 * (texts->used + length) + 4096;
        if (!grown(&texts->bytes, room)) return false;
        texts->room = room;
    }
    bool is_full = 2 * (uint64_t)(texts->count + 1) > texts->mask;
    return texts->count < MOST_TEXTS && (!is_full || rehashed(texts));
}

int64_t texts_number(Texts *texts, const Byte *at, int64_t length) {
    uint64_t hash = hash_of(at, length);
    if (!has_room(texts, length)) return -1;
    uint64_t place = hash & texts->mask;
    for (; texts->places[place]; place = (place + 1) & texts->mask) {
        int64_t number = (int64_t)texts->places[place] - 1, start = texts->ends[number];
        if (texts->hashes[number] == hash && texts->ends[number + 1] - start == length &&
            memcmp(texts->bytes + start, at, (size_t)length) == 0)
            return number;
    }
    int64_t number = texts->count++;
    memcpy(texts->bytes + texts->used, at, (size_t)length);
    texts->used += length;
    texts->ends[number + 1] = texts->used;
    texts->hashes[number] = hash;
    texts->places[place] = (uint32_t)number + 1;
    return number;
}

void texts_free(Texts *texts) {
    free(texts->bytes);
    free(texts->ends);
    free(texts->hashes);
    free(texts->places);
}
