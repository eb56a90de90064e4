/* request_load HOST:PORT[,HOST:PORT...] name=value...
 *
 * Plays a plan of requests (plan.h) over many connections and reads the answers. The connections go to the servers in
 * turn: connection 0 to the first, connection 1 to the second.
 *
 *   plan=FILE        the plan
 *   requests=1       how many requests are timed, over all connections
 *   seconds=0        the program stops after this time, even if requests are left; 0 means that it does not
 *   connections=1    connection i begins at group i of the plan
 *   step=0           groups that a connection moves on after each group; 0: it repeats its first group
 *   depth=1          requests that each connection leaves unanswered
 *   refill=DEPTH-1   a connection sends again when at most this number of its requests are unanswered
 *   protocol=kafka   kafka: each request gets the next correlation id of its connection, and the answers must come in
 *                    that order; frames: length and bytes, as Thrift has them; http: requests without a body
 *   producer=-1      base of the producer ids: connection i is the idempotent producer BASE + i; -1: not idempotent
 *   flood=FILE       a plan that one further connection, the flooder, sends as fast as its socket takes it, without
 *                    waiting for answers, until the others are done
 *   flood_reads=1    whether the flooder reads its answers
 *   pid=PID[,PID...] the servers' processes, whose CPU time is printed
 *   answer=FILE      the first answer is written there
 *   tls=0            1: TLS 1.3
 *   login=FILE       a plan that each connection plays first, one group a connection in turn: logins of SASL. Their
 *                    answers are checked and not counted
 *
 * Each connection first logs in, where a login is given. Then it sends one request and awaits its answer: accepting
 * connections is not timed. Then the clock starts. An answer's time runs from the send call of its request to the recv call of the answer. At the end of
 * `seconds` unanswered requests count with the time they have waited. Prints one line of numbers:
 *
 *   seconds, answers, median, 99th percentile and greatest of their times in us, CPU seconds of the servers,
 *   answers with an error code, the first error code, records in answered requests, bytes of answers (all three with
 *   the untimed answers), and of the flooder: requests sent, answers, answers with an error code, 1 if the server closed
 *   its connection */
#define _GNU_SOURCE /* memmem */
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "plan.h"
#include "tls.h"

enum { ROOM = 1 << 16, FLOOD_BYTES = 1 << 16, SPARE_FILES = 64 };
enum { SILENCE_SECONDS = 30, SERVERS_MAX = 16 };
enum protocol { KAFKA, FRAMES, HTTP };

struct asked {
    const struct request *request;
    uint64_t at;
};

struct connection {
    int fd;
    void *session; /* of TLS; NULL without */
    long number, sent, answered;
    struct asked *asked;     /* a ring of DEPTH requests, the unanswered ones */
    uint32_t *sequences;     /* the next sequence number, by slot */
    unsigned char latest[8]; /* base offset of the latest Produce answer */
    unsigned char *buffer;
    size_t filled, room;
};

struct tally {
    long answers, errors, first_error, records, bytes;
};

static struct {
    const char *plan, *flood, *answer, *login;
    long requests, seconds, connections, step, depth, refill, producer, flood_reads, tls;
    enum protocol protocol;
} option = {.requests = 1, .connections = 1, .depth = 1, .refill = -1, .producer = -1, .flood_reads = 1};

static struct sockaddr_in servers[SERVERS_MAX];
static long server_count, pids[SERVERS_MAX], pid_count;

static struct plan plan, logins;
static struct connection *all;
static struct tally polite;
static long to_send, to_answer;
static unsigned char *outgoing;
static uint32_t *times_us;
static long timed = -1; /* answers that were timed; -1 before the clock starts */
static uint64_t last_answer_at;

static struct {
    struct plan plan;
    struct connection connection;
    struct tally tally;
    unsigned char *block; /* the plan's frames, repeated */
    size_t size, done, frames;
    int epoll, closed;
} flood;

/* --- answers ------------------------------------------------------------------------------------------------------ */

/* How long the answer at `bytes` is, its framing included; 0 while the bytes do not say it. */
static size_t answer_size(const unsigned char *bytes, size_t there) {
    if (option.protocol != HTTP) return there < 4 ? 0 : 4 + (size_t)get32(bytes);
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

/* Check an answer against its request, and count it. `latest` keeps the base offset that a Produce answer names. */
static void count_answer(struct tally *tally, const struct request *request, long id, const unsigned char *bytes,
                         size_t size, unsigned char *latest) {
    static size_t first_size;
    int failed = 0;
    if (option.protocol == KAFKA) {
        if (size < ANSWER_ID + 4 || get32(bytes + ANSWER_ID) != (uint32_t)id)
            die("an answer with the correlation id %u came where %ld was due", get32(bytes + ANSWER_ID), id);
        for (uint32_t i = 0; i < request->error_count; i++) {
            uint32_t at = request->errors[i];
            if (size < at + 2) die("an answer of %zu bytes has no error code at byte %u", size, at);
            int code = (int16_t)(bytes[at] << 8 | bytes[at + 1]);
            if (code && !tally->errors) tally->first_error = code;
            failed |= code;
        }
        if (size < request->answer_min && !failed)
            die("an answer has %zu bytes, %u or more were due", size, request->answer_min);
        if (request->base_offset_at && !failed) memcpy(latest, bytes + request->base_offset_at, 8);
    } else {
        if (!first_size) first_size = size;
        if (size != first_size) die("an answer has %zu bytes, the first had %zu", size, first_size);
    }
    tally->answers++;
    tally->errors += failed != 0;
    tally->bytes += (long)size;
    for (uint32_t i = 0; i < request->batch_count && !failed; i++) tally->records += request->batches[i].records;
}

static void keep_first_answer(const unsigned char *bytes, size_t size) {
    if (polite.answers || !option.answer) return;
    FILE *file = fopen(option.answer, "wb");
    if (!file || fwrite(bytes, 1, size, file) != size) die("%s: %s", option.answer, strerror(errno));
    fclose(file);
}

static void polite_answer(struct connection *c, const unsigned char *bytes, size_t size, uint64_t at) {
    struct asked *asked = &c->asked[c->answered % option.depth];
    if (c->answered == c->sent) die("an answer came where none was due");
    keep_first_answer(bytes, size);
    count_answer(&polite, asked->request, c->answered, bytes, size, c->latest);
    c->answered++;
    to_answer--;
    last_answer_at = at;
    if (timed >= 0) times_us[timed++] = (uint32_t)((at - asked->at) / 1000);
}

static void flood_answer(struct connection *c, const unsigned char *bytes, size_t size, uint64_t at) {
    (void)at;
    const struct request *request = request_of(&flood.plan, 0, c->answered, 1);
    count_answer(&flood.tally, request, c->answered, bytes, size, c->latest);
    c->answered++;
}

static ssize_t read_some(struct connection *c) {
    unsigned char *into = c->buffer + c->filled;
    size_t room = c->room - c->filled;
    return c->session ? tls_receive(c->session, into, room) : recv(c->fd, into, room, MSG_DONTWAIT);
}

static void send_all(struct connection *c, const unsigned char *bytes, size_t size) {
    size_t done = 0;
    while (done < size) { /* a few kilobytes: they fit into the socket's buffer, or wait a moment */
        ssize_t sent = c->session ? tls_send(c->session, bytes + done, size - done)
                                  : send(c->fd, bytes + done, size - done, MSG_NOSIGNAL);
        if (sent < 0) die("send: %s", strerror(errno));
        done += (size_t)sent;
    }
}

/* Read what the socket has, and hand each whole answer on. Returns 0 when the server has closed the connection.
 * TLS may hold bytes that no event names, so it is read until it has none. */
static int receive(struct connection *c, void (*take)(struct connection *, const unsigned char *, size_t, uint64_t)) {
    if (c->filled == c->room) c->buffer = realloc(c->buffer, c->room *= 2);
    ssize_t got = read_some(c);
    if (got < 0 && errno == EAGAIN) return 1;
    if (got <= 0) return 0;
    c->filled += (size_t)got;
    uint64_t at = now_ns();
    size_t begin = 0, size;
    while ((size = answer_size(c->buffer + begin, c->filled - begin)) > 0 && c->filled - begin >= size) {
        take(c, c->buffer + begin, size, at);
        begin += size;
    }
    memmove(c->buffer, c->buffer + begin, c->filled - begin);
    c->filled -= begin;
    return c->session ? receive(c, take) : 1;
}

/* --- the connections that wait for their answers ------------------------------------------------------------------ */

/* Write the connection's next request to `into`, and return its size. */
static size_t make_request(struct connection *c, unsigned char *into) {
    const struct request *request = request_of(&plan, c->number, c->sent, option.step);
    memcpy(into, request->frame, request->size);
    if (option.protocol == KAFKA) put32(into + REQUEST_ID, (uint32_t)c->sent);
    if (request->fetch_offset_at) memcpy(into + request->fetch_offset_at, c->latest, 8);
    stamp_batches(request, into, option.producer < 0 ? -1 : option.producer + c->number, c->sequences);
    c->asked[c->sent++ % option.depth].request = request;
    return request->size;
}

static void fill(struct connection *c, long depth) {
    long first = c->sent, count = depth - (c->sent - c->answered);
    if (count > to_send) count = to_send;
    if (count <= 0) return;
    size_t size = 0;
    for (long i = 0; i < count; i++) size += make_request(c, outgoing + size);
    uint64_t at = now_ns();
    for (long i = first; i < c->sent; i++) c->asked[i % option.depth].at = at;
    send_all(c, outgoing, size);
    to_send -= count;
}

/* --- the flooder -------------------------------------------------------------------------------------------------- */

/* Number the frames of the block, which begins with request `first` of the flooder's connection. */
static void number_block(long first) {
    size_t at = 0;
    for (size_t i = 0; i < flood.frames; i++) {
        const struct request *request = request_of(&flood.plan, 0, first + (long)i, 1);
        put32(flood.block + at + REQUEST_ID, (uint32_t)(first + (long)i));
        at += request->size;
    }
}

/* A block is whole rounds of the plan, so that each block begins with the plan's first frame. */
static void make_block(void) {
    size_t round = 0, rounds;
    for (uint32_t i = 0; i < flood.plan.count; i++) round += flood.plan.requests[i].size;
    rounds = FLOOD_BYTES / round + 1;
    flood.size = rounds * round;
    flood.frames = rounds * flood.plan.count;
    flood.block = malloc(flood.size);
    for (size_t i = 0, at = 0; i < flood.frames; at += flood.plan.requests[i++ % flood.plan.count].size) {
        const struct request *request = &flood.plan.requests[i % flood.plan.count];
        memcpy(flood.block + at, request->frame, request->size);
        stamp_batches(request, flood.block + at, -1, NULL);
    }
    number_block(0);
}

static void close_flood(void) {
    epoll_ctl(flood.epoll, EPOLL_CTL_DEL, flood.connection.fd, NULL);
    close(flood.connection.fd);
    flood.closed = 1;
}

static void on_flood(uint32_t events) {
    struct connection *c = &flood.connection;
    if (events & EPOLLIN && !receive(c, flood_answer)) {
        close_flood();
        return;
    }
    if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP))) return;
    ssize_t sent = send(c->fd, flood.block + flood.done, flood.size - flood.done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        if (errno != EAGAIN) close_flood();
        return;
    }
    flood.done += (size_t)sent;
    if (flood.done < flood.size) return;
    c->sent += (long)flood.frames;
    flood.done = 0;
    number_block(c->sent);
}

/* Requests of the flooder that have left whole. */
static long flood_sent(void) {
    long whole = flood.connection.sent;
    for (size_t at = 0, i = 0; i < flood.frames; i++, whole++) {
        at += flood.plan.requests[i % flood.plan.count].size;
        if (at > flood.done) break;
    }
    return whole;
}

/* --- the run ------------------------------------------------------------------------------------------------------ */

/* Play the requests of a login, each after the answer of the one before. */
static void log_in(struct connection *c) {
    for (long sent = 0; sent < logins.group; sent++) {
        const struct request *request = request_of(&logins, c->number, sent, 0);
        struct tally tally = {0};
        size_t size;
        send_all(c, request->frame, request->size);
        while (!(size = answer_size(c->buffer, c->filled)) || c->filled < size) {
            ssize_t got = read_some(c);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0) die("the server closed a connection during its login");
            c->filled += (size_t)got;
        }
        count_answer(&tally, request, 0, c->buffer, size, c->latest);
        if (tally.errors) die("the server refuses a login: error %ld", tally.first_error);
        c->filled = 0;
    }
}

static void open_connection(struct connection *c, int epoll, uint32_t events) {
    int on = 1;
    struct sockaddr_in *address = &servers[c->number % server_count];
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)address, sizeof *address))
        die("port %d: %s", ntohs(address->sin_port), strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    c->room = ROOM;
    c->buffer = malloc(ROOM);
    if (option.tls) c->session = tls_connect(c->fd);
    if (option.login) log_in(c);
    c->asked = calloc((size_t)option.depth, sizeof *c->asked);
    c->sequences = calloc(plan.slots + 1, sizeof *c->sequences);
    struct epoll_event event = {.events = events, .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
}

/* Let each connection send up to `depth` requests at a time until `requests` are answered, or the time has passed.
 * `end_ns` is that time, or 0. */
static void play(int epoll, long requests, long depth, uint64_t end_ns) {
    to_send = to_answer = requests;
    last_answer_at = now_ns();
    for (long i = 0; i < option.connections; i++) fill(&all[i], depth);
    while (to_answer > 0) {
        struct epoll_event events[64];
        uint64_t now = now_ns();
        if (end_ns && now >= end_ns) return;
        if (now > last_answer_at + SILENCE_SECONDS * 1000000000ull)
            die("no answer for %d s after %ld answers", SILENCE_SECONDS, polite.answers);
        int wait_ms = end_ns && end_ns - now < 1000000000 ? (int)((end_ns - now) / 1000000) + 1 : 1000;
        int count = epoll_wait(epoll, events, 64, wait_ms);
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (c == &flood.connection) {
                on_flood(events[i].events);
                continue;
            }
            if (!receive(c, polite_answer)) die("the server closed a connection after %ld answers", polite.answers);
            if (c->sent - c->answered <= option.refill) fill(c, depth);
        }
    }
}

/* Add how long the unanswered requests have waited to the times, so that a server that stops answering looks slow. */
static void count_unanswered(void) {
    uint64_t now = now_ns();
    for (long i = 0; i < option.connections; i++)
        for (long k = all[i].answered; k < all[i].sent; k++)
            times_us[timed++] = (uint32_t)((now - all[i].asked[k % option.depth].at) / 1000);
}

static void allow_files(long wanted) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= (rlim_t)wanted) return;
    if (limit.rlim_max < (rlim_t)wanted) die("%ld files are needed, the limit is %ld", wanted, (long)limit.rlim_max);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* The comma-separated words of `list`, handed to `take` with their numbers. */
static long for_each(char *list, void (*take)(long, char *)) {
    long count = 0;
    for (char *word = strtok(list, ","); word; word = strtok(NULL, ",")) {
        if (count == SERVERS_MAX) die("more than %d servers", SERVERS_MAX);
        take(count++, word);
    }
    return count;
}

static void take_server(long number, char *word) {
    char *port = strrchr(word, ':');
    if (!port) die("%s: must be HOST:PORT", word);
    *port++ = 0;
    servers[number] = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atol(port))};
    if (inet_pton(AF_INET, word, &servers[number].sin_addr) != 1) die("%s is no IPv4 address", word);
}

static void take_pid(long number, char *word) { pids[number] = atol(word); }

static double servers_cpu_seconds(void) {
    double seconds = 0;
    for (long i = 0; i < pid_count; i++) seconds += cpu_seconds(pids[i]);
    return seconds;
}

static void read_option(char *word) {
    static const struct {
        const char *name;
        long *value;
    } numbers[] = {
        {"requests", &option.requests}, {"seconds", &option.seconds},         {"connections", &option.connections},
        {"step", &option.step},         {"depth", &option.depth},             {"refill", &option.refill},
        {"producer", &option.producer}, {"flood_reads", &option.flood_reads}, {"tls", &option.tls},
    };
    char *value = strchr(word, '=');
    if (!value) die("%s: must be name=value", word);
    *value++ = 0;
    if (!strcmp(word, "plan")) option.plan = value;
    else if (!strcmp(word, "flood")) option.flood = value;
    else if (!strcmp(word, "answer")) option.answer = value;
    else if (!strcmp(word, "login")) option.login = value;
    else if (!strcmp(word, "pid")) pid_count = for_each(value, take_pid);
    else if (!strcmp(word, "protocol")) option.protocol = *value == 'k' ? KAFKA : *value == 'h' ? HTTP : FRAMES;
    else {
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
            if (!strcmp(word, numbers[i].name)) {
                *numbers[i].value = atol(value);
                return;
            }
        die("%s: no such option", word);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) die("usage: request_load HOST:PORT[,HOST:PORT...] plan=FILE name=value...");
    server_count = for_each(argv[1], take_server);
    for (int i = 2; i < argc; i++) read_option(argv[i]);
    if (!option.plan || !pid_count || !server_count) die("a server, plan and pid are needed");
    if (option.depth < 1 || option.connections < 1 || option.requests < 1) die("no requests");
    if (option.refill < 0) option.refill = option.depth - 1;
    allow_files(option.connections + SPARE_FILES);
    plan = read_plan(option.plan);
    if (option.login) logins = read_plan(option.login);
    if (option.tls) tls_begin();
    outgoing = malloc((size_t)option.depth * plan.longest);
    times_us = malloc((size_t)option.requests * sizeof *times_us);
    all = calloc((size_t)option.connections, sizeof *all);
    int epoll = flood.epoll = epoll_create1(0);
    for (long i = 0; i < option.connections; i++) {
        all[i].number = i;
        open_connection(&all[i], epoll, EPOLLIN);
    }
    play(epoll, option.connections, 1, 0);
    if (option.flood) {
        flood.plan = read_plan(option.flood);
        make_block();
        open_connection(&flood.connection, epoll, EPOLLOUT | (option.flood_reads ? EPOLLIN : 0));
    }
    timed = 0;
    double cpu = servers_cpu_seconds();
    uint64_t start = now_ns();
    play(epoll, option.requests, option.depth, option.seconds ? start + (uint64_t)option.seconds * 1000000000u : 0);
    double seconds = (double)(now_ns() - start) / 1e9;
    cpu = servers_cpu_seconds() - cpu;
    long answers = timed;
    count_unanswered();
    printf("%.6f %ld ", seconds, answers);
    print_percentiles(times_us, (size_t)timed); /* sorts them */
    printf("%u ", times_us[timed - 1]);
    printf("%.2f %ld %ld %ld %ld ", cpu, polite.errors, polite.first_error, polite.records, polite.bytes);
    printf("%ld %ld %ld %d\n", flood_sent(), flood.tally.answers, flood.tally.errors, flood.closed);
    return 0;
}
