/* A plan of requests in a file, and how a request of it is made ready to be sent.
 *
 * The file is a sequence of unsigned 32-bit big-endian numbers and the bytes of the frames:
 *
 *     requests, requests in a group, slots
 *     for each request:
 *         bytes of its frame
 *         batches, and for each: place in the frame, bytes, slot (which count of sequence numbers the batch uses)
 *         error codes, and for each: its place in the answer
 *         place of a fetch offset in the frame, place of a base offset in the answer; 0 means that there is none
 *         least bytes of an answer
 *         the frame
 *
 * A place in a frame or in an answer counts from the first byte of its length. */
#ifndef FLAKELOG_PLAN_H
#define FLAKELOG_PLAN_H

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "common.h"
#include "crc32c.h"

enum { BATCHES_MAX = 2, ERRORS_MAX = 2 };
enum { REQUEST_ID = 8, ANSWER_ID = 4 }; /* places of the correlation id */
/* Places in a record batch of magic 2, https://kafka.apache.org/documentation/#recordbatch */
enum { CRC = 17, CHECKED = 21, BASE_TIME = 27, LAST_TIME = 35, PRODUCER = 43, EPOCH = 51, SEQUENCE = 53, COUNT = 57 };

struct batch {
    uint32_t at, size, slot, records;
};

struct request {
    uint32_t size, batch_count, error_count;
    struct batch batches[BATCHES_MAX];
    uint32_t errors[ERRORS_MAX];
    uint32_t fetch_offset_at, base_offset_at, answer_min;
    const unsigned char *frame;
};

struct plan {
    struct request *requests;
    uint32_t count, group, slots, longest;
};

static inline void put32(unsigned char *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, 4);
}

static inline void put64(unsigned char *at, uint64_t value) {
    value = htobe64(value);
    memcpy(at, &value, 8);
}

static inline uint32_t get32(const unsigned char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static inline uint32_t next_number(FILE *file) {
    unsigned char bytes[4];
    if (fread(bytes, 1, 4, file) != 4) die("the plan ends too early");
    return get32(bytes);
}

static inline uint32_t next_count(FILE *file, uint32_t most, const char *what) {
    uint32_t count = next_number(file);
    if (count > most) die("a request with %u %s; there can be %u", count, what, most);
    return count;
}

static inline void read_request(FILE *file, struct request *request) {
    request->size = next_number(file);
    request->batch_count = next_count(file, BATCHES_MAX, "batches");
    for (uint32_t i = 0; i < request->batch_count; i++) {
        struct batch *batch = &request->batches[i];
        batch->at = next_number(file), batch->size = next_number(file), batch->slot = next_number(file);
    }
    request->error_count = next_count(file, ERRORS_MAX, "error codes");
    for (uint32_t i = 0; i < request->error_count; i++) request->errors[i] = next_number(file);
    request->fetch_offset_at = next_number(file), request->base_offset_at = next_number(file);
    request->answer_min = next_number(file);
    unsigned char *frame = malloc(request->size);
    if (fread(frame, 1, request->size, file) != request->size) die("the plan ends inside a frame");
    request->frame = frame;
    for (uint32_t i = 0; i < request->batch_count; i++)
        request->batches[i].records = get32(frame + request->batches[i].at + COUNT);
}

static inline struct plan read_plan(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) die("%s: %s", path, strerror(errno));
    struct plan plan = {.count = next_number(file), .group = next_number(file), .slots = next_number(file)};
    if (!plan.count || !plan.group || plan.count % plan.group) die("%s: no whole groups of requests", path);
    plan.requests = calloc(plan.count, sizeof *plan.requests);
    for (uint32_t i = 0; i < plan.count; i++) {
        read_request(file, &plan.requests[i]);
        if (plan.requests[i].size > plan.longest) plan.longest = plan.requests[i].size;
    }
    fclose(file);
    return plan;
}

/* The request number `sent` of connection `number`. A connection begins at a group of its own, plays the whole group,
 * and moves `step` groups on; at the plan's end it begins again. */
static inline const struct request *request_of(const struct plan *plan, long number, long sent, long step) {
    long groups = plan->count / plan->group, group = (number + sent / plan->group * step) % groups;
    return &plan->requests[group * plan->group + sent % plan->group];
}

/* Give each batch in a copy of the request's frame the current time, as every producer does. With `producer` not below
 * 0 each batch also gets that producer id, epoch 0, and the next sequence number of its slot. Then compute the CRC. */
static inline void stamp_batches(const struct request *request, unsigned char *frame, int64_t producer,
                                 uint32_t *sequences) {
    for (uint32_t i = 0; i < request->batch_count; i++) {
        const struct batch *batch = &request->batches[i];
        unsigned char *bytes = frame + batch->at;
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        uint64_t now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
        put64(bytes + BASE_TIME, now_ms);
        put64(bytes + LAST_TIME, now_ms);
        if (producer >= 0) {
            put64(bytes + PRODUCER, (uint64_t)producer);
            bytes[EPOCH] = bytes[EPOCH + 1] = 0;
            put32(bytes + SEQUENCE, sequences[batch->slot]);
            sequences[batch->slot] += batch->records;
        }
        put32(bytes + CRC, crc32c(bytes + CHECKED, batch->size - CHECKED));
    }
}

#endif
