/* Columns handed over through the Arrow C data interface.
 * https://arrow.apache.org/docs/format/CDataInterface.html */
#include "columns.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children, *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#define NULLABLE 2

/* Everything a structure points to; freed with it. The columns' data are freed with the columns. */
typedef struct {
    struct ArrowSchema children[MOST_COLUMNS], *pointers[MOST_COLUMNS];
    char formats[MOST_COLUMNS][2], names[MOST_COLUMNS][4];
} SchemaParts;

typedef struct {
    struct ArrowArray children[MOST_COLUMNS], *pointers[MOST_COLUMNS];
    const void *buffers[MOST_COLUMNS][2], *own_buffer;
} ArrayParts;

/* Of a column or of texts: where they are valid, values or ends, and bytes. It frees what they point to. */
typedef struct {
    const void *buffers[3];
} ColumnParts;

int32_t native_revision(void) { return NATIVE_REVISION; }

bool grown(void *pointer, int64_t size) {
    void *memory;
    memcpy(&memory, pointer, sizeof memory);
    if (!(memory = realloc(memory, (size_t)size))) return false;
    memcpy(pointer, &memory, sizeof memory);
    return true;
}

void free_columns(Table *table) {
    for (int32_t n = 0; n < table->width; n++) {
        free(table->columns[n].values);
        free(table->columns[n].valid);
        free(table->columns[n].bytes);
    }
}

static void released_schema(struct ArrowSchema *schema) {
    for (int64_t n = 0; n < schema->n_children; n++)
        if (schema->children[n]->release) schema->children[n]->release(schema->children[n]);
    free(schema->private_data);
    schema->release = NULL;
}

static void released_array(struct ArrowArray *array) {
    for (int64_t n = 0; n < array->n_children; n++)
        if (array->children[n]->release) array->children[n]->release(array->children[n]);
    free(array->private_data);
    array->release = NULL;
}

/* A column may outlive its table, so it owns what its buffers point to, and that list too. */
static void released_column(struct ArrowArray *array) {
    for (int64_t n = 0; n < array->n_buffers; n++) free((void *)array->buffers[n]);
    free(array->private_data);
    array->release = NULL;
}

static int schema_of(const Table *table, struct ArrowSchema *schema) {
    SchemaParts *parts = calloc(1, sizeof *parts);
    if (!parts) return -1;
    for (int32_t n = 0; n < table->width; n++) {
        parts->formats[n][0] = table->columns[n].format;
        snprintf(parts->names[n], sizeof parts->names[n], "%d", (int)n % 100);
        parts->children[n] = (struct ArrowSchema){
            .format = parts->formats[n], .name = parts->names[n], .flags = NULLABLE, .release = released_schema};
        parts->pointers[n] = &parts->children[n];
    }
    *schema = (struct ArrowSchema){.format = "+s",
                                   .name = "",
                                   .n_children = table->width,
                                   .children = parts->pointers,
                                   .release = released_schema,
                                   .private_data = parts};
    return 0;
}

static int column_array(Column *column, int64_t height, struct ArrowArray *array) {
    ColumnParts *parts = malloc(sizeof *parts);
    if (!parts) return -1;
    bool has_bytes = column->format == 'U' || column->format == 'Z';
    *parts = (ColumnParts){{column->valid, column->values, column->bytes}};
    *array = (struct ArrowArray){.length = height,
                                 .null_count = -1,
                                 .n_buffers = has_bytes ? 3 : 2,
                                 .buffers = parts->buffers,
                                 .release = released_column,
                                 .private_data = parts};
    column->valid = column->bytes = NULL;
    column->values = NULL;
    column->used = column->room = 0;
    return 0;
}

int arrow_table(Table *table, struct ArrowSchema *schema, struct ArrowArray *array) {
    ArrayParts *parts = calloc(1, sizeof *parts);
    if (!parts || schema_of(table, schema) < 0) return free(parts), -1;
    *array = (struct ArrowArray){.length = table->height,
                                 .n_buffers = 1,
                                 .buffers = &parts->own_buffer,
                                 .children = parts->pointers,
                                 .release = released_array,
                                 .private_data = parts};
    int status = 0;
    for (int32_t n = 0; n < table->width && status == 0; n++) {
        parts->pointers[n] = &parts->children[n];
        status = column_array(&table->columns[n], table->height, parts->pointers[n]);
        if (status == 0) array->n_children++;
    }
    table->height = table->room = 0;
    if (status == 0) return 0;
    schema->release(schema);
    array->release(array);
    return -1;
}

static void *copied(const void *from, int64_t size) {
    void *found = malloc((size_t)size + PADDING);
    if (found && size) memcpy(found, from, (size_t)size);
    return found;
}

int arrow_texts(const int64_t *ends, const Byte *bytes, int64_t count, struct ArrowSchema *schema,
                struct ArrowArray *array) {
    static const int64_t none[1] = {0};
    ColumnParts *parts = calloc(1, sizeof *parts);
    if (!parts) return -1;
    if (!count) ends = none;
    parts->buffers[1] = copied(ends, (count + 1) * (int64_t)sizeof *ends);
    parts->buffers[2] = copied(bytes, ends[count]);
    if (!parts->buffers[1] || !parts->buffers[2]) {
        free((void *)parts->buffers[1]);
        free((void *)parts->buffers[2]);
        return free(parts), -1;
    }
    *schema = (struct ArrowSchema){.format = "U", .name = "", .release = released_schema};
    *array = (struct ArrowArray){.length = count,
                                 .n_buffers = 3,
                                 .buffers = parts->buffers,
                                 .release = released_column,
                                 .private_data = parts};
    return 0;
}
