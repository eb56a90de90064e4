/* What the load programs share: a clock, an end with a message, and the CPU time of another process. */
#ifndef FLAKELOG_COMMON_H
#define FLAKELOG_COMMON_H

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t now_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static inline void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

/* User and system time of a process, all its threads together. */
static inline double cpu_seconds(long pid) {
    char path[64], line[1024];
    unsigned long user, system;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file)) die("%s: %s", path, strerror(errno));
    fclose(file);
    const char *fields = strrchr(line, ')'); /* the process's name stands in brackets, and may hold some itself */
    if (!fields || sscanf(fields + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
        die("%s: no CPU time", path);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static inline int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Sort the times, and print their median and 99th percentile. */
static inline void print_percentiles(uint32_t *times, size_t count) {
    qsort(times, count, sizeof *times, by_value);
    printf("%u %u ", times[count / 2], times[count * 99 / 100]);
}

#endif
