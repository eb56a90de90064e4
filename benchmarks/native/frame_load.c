/* frame_load HOST PORT CONNECTIONS DEPTH REQUESTS FRAME_FILE REPLY_FILE
 *
 * Sends a frame REQUESTS times over some connections, DEPTH of them unanswered on each, and reads as many answers framed
 * alike. A frame is four bytes of length and then so many bytes, or one HTTP request without a body, whose answers have
 * a Content-Length. The file has one frame or, of the first kind, several of one size: connection i sends frame i, and
 * they begin anew where there are fewer. Writes one answer to REPLY_FILE for the caller to look at; all others must be as
 * long. Prints: seconds, and the median and 99th percentile of an answer's time in us (with DEPTH 1 that is one
 * request's). */
#define _GNU_SOURCE /* memmem */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"

enum { FRAME_MAX = 1 << 20, REPLY_MAX = 1 << 16 };

struct connection {
    int fd;
    const char *frames; /* DEPTH copies of its frame */
    uint64_t sent_at;
    long unsent, unanswered;
    size_t filled;
    unsigned char buffer[REPLY_MAX];
};

static char *frames;
static size_t frame_size, frame_count;
static long depth, to_send, to_answer;
static uint32_t *times_us;
static long answered;
static long reply_size = -1;
static const char *reply_file;
static int http;

static void read_frame(const char *path) {
    static char content[FRAME_MAX];
    FILE *file = fopen(path, "rb");
    if (!file) die("%s: %s", path, strerror(errno));
    size_t size = fread(content, 1, FRAME_MAX, file);
    fclose(file);
    uint32_t length = 0;
    if (size >= 4) memcpy(&length, content, 4);
    frame_size = 4 + (size_t)ntohl(length);
    http = size > 4 && !memcmp(content + size - 4, "\r\n\r\n", 4) && memmem(content, size, " HTTP/1.1\r\n", 11);
    if (http) frame_size = size;
    if (size < 4 || size == FRAME_MAX || size % frame_size) die("%s: %zu bytes are no frames of one size", path, size);
    frame_count = size / frame_size;
    frames = malloc(size * (size_t)depth);
    for (size_t i = 0; i < frame_count * (size_t)depth; i++)
        memcpy(frames + i * frame_size, content + i / (size_t)depth * frame_size, frame_size);
}

static void fill(struct connection *c) {
    long count = depth - c->unanswered;
    if (count > to_send) count = to_send;
    if (count <= 0) return;
    size_t size = (size_t)count * frame_size, done = 0;
    c->sent_at = now_ns();
    while (done < size) { /* a few kilobytes: they fit into the socket's buffer, or wait a moment */
        ssize_t sent = send(c->fd, c->frames + done, size - done, 0);
        if (sent < 0) die("send: %s", strerror(errno));
        done += (size_t)sent;
    }
    c->unanswered += count;
    to_send -= count;
}

static void look_at(const unsigned char *reply, long size) {
    if (reply_size < 0) {
        FILE *file = fopen(reply_file, "wb");
        if (!file || fwrite(reply, 1, (size_t)size, file) != (size_t)size) die("%s: %s", reply_file, strerror(errno));
        fclose(file);
        reply_size = size;
    }
    if (size != reply_size) die("an answer has %ld bytes, the first had %ld", size, reply_size);
}

/* How long the answer at `bytes` is, its framing included; 0 while that cannot be told. */
static size_t answer_size(const unsigned char *bytes, size_t there) {
    if (!http) {
        uint32_t length;
        if (there < 4) return 0;
        memcpy(&length, bytes, 4);
        return 4 + (size_t)ntohl(length);
    }
    const unsigned char *end = memmem(bytes, there, "\r\n\r\n", 4);
    if (!end) return 0;
    if (memcmp(bytes, "HTTP/1.1 200 ", 13)) die("the server refuses: %.60s", bytes);
    const char *field = "\r\nContent-Length: ";
    for (const unsigned char *at = bytes; at < end; at++)
        if (!strncasecmp((const char *)at, field, strlen(field)))
            return (size_t)(end - bytes) + 4 + (size_t)atol((const char *)at + strlen(field));
    die("an answer without a Content-Length");
    return 0;
}

static void receive(struct connection *c) {
    ssize_t got = recv(c->fd, c->buffer + c->filled, REPLY_MAX - c->filled, 0);
    if (got <= 0) die("the server closed a connection after %ld answers", answered);
    c->filled += (size_t)got;
    uint64_t at = now_ns();
    size_t begin = 0;
    size_t size;
    while ((size = answer_size(c->buffer + begin, c->filled - begin)) > 0) {
        if (size > REPLY_MAX) die("an answer of %zu bytes", size);
        if (c->filled - begin < size) break;
        look_at(c->buffer + begin, (long)size);
        times_us[answered++] = (uint32_t)((at - c->sent_at) / 1000);
        c->unanswered--;
        to_answer--;
        begin += size;
    }
    memmove(c->buffer, c->buffer + begin, c->filled - begin);
    c->filled -= begin;
    if (c->unanswered <= depth / 2) fill(c);
}

static int connect_to(const char *host, int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die("%s is no IPv4 address", host);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("%s:%d: %s", host, port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    if (argc != 8) die("usage: frame_load HOST PORT CONNECTIONS DEPTH REQUESTS FRAME_FILE REPLY_FILE");
    int number = atoi(argv[3]);
    depth = atol(argv[4]);
    to_send = to_answer = atol(argv[5]);
    reply_file = argv[7];
    read_frame(argv[6]);
    times_us = malloc((size_t)to_answer * sizeof *times_us);
    struct connection *all = calloc((size_t)number, sizeof *all);
    int poll = epoll_create1(0);
    for (int i = 0; i < number; i++) {
        all[i].fd = connect_to(argv[1], atoi(argv[2]));
        all[i].frames = frames + (size_t)i % frame_count * (size_t)depth * frame_size;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, all[i].fd, &event);
    }
    uint64_t start = now_ns();
    for (int i = 0; i < number; i++) fill(&all[i]);
    while (to_answer > 0) {
        struct epoll_event events[64];
        int count = epoll_wait(poll, events, 64, 30000);
        if (count == 0) die("no answer for 30 s after %ld answers", answered);
        for (int i = 0; i < count; i++) receive(events[i].data.ptr);
    }
    double seconds = (double)(now_ns() - start) / 1e9;
    qsort(times_us, (size_t)answered, sizeof *times_us, by_value);
    printf("%.6f %u %u\n", seconds, times_us[answered / 2], times_us[answered * 99 / 100]);
    return 0;
}
