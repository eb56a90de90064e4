/* frame_floor ANSWER_BYTES
 *
 * The least that a server on one core can do: epoll, recv, send. Reads frames (four bytes of length, then that many
 * bytes) and answers each with a frame of ANSWER_BYTES, length included. An answer repeats the correlation id of a
 * Kafka request; its other bytes are 0. Prints its port, and serves until standard input ends. */
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "plan.h"

enum { BUFFER = 1 << 18, CONNECTIONS = 1024, ANSWERS = 1 << 18 };

static unsigned char buffers[CONNECTIONS][BUFFER];
static size_t filled[CONNECTIONS];
static unsigned char answers[ANSWERS];
static size_t answer_size;

static void send_answers(int fd, size_t size) {
    ssize_t sent = size ? send(fd, answers, size, MSG_NOSIGNAL) : 0;
    if (sent >= 0 && (size_t)sent != size) die("this program cannot wait for a slow reader");
    /* after an error the next recv ends the connection */
}

static void answer(int fd) {
    ssize_t got = recv(fd, buffers[fd] + filled[fd], BUFFER - filled[fd], 0);
    if (got <= 0) {
        filled[fd] = 0;
        close(fd);
        return;
    }
    filled[fd] += (size_t)got;
    size_t begin = 0, ready = 0;
    while (filled[fd] - begin >= 4) {
        const unsigned char *frame = buffers[fd] + begin;
        size_t size = 4 + (size_t)get32(frame);
        if (filled[fd] - begin < size) break;
        if (ready + answer_size > ANSWERS) {
            send_answers(fd, ready);
            ready = 0;
        }
        if (size >= REQUEST_ID + 4 && answer_size >= ANSWER_ID + 4)
            memcpy(answers + ready + ANSWER_ID, frame + REQUEST_ID, 4);
        begin += size;
        ready += answer_size;
    }
    memmove(buffers[fd], buffers[fd] + begin, filled[fd] - begin);
    filled[fd] -= begin;
    send_answers(fd, ready);
}

static int listen_anywhere(void) {
    int server = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(server, (struct sockaddr *)&address, size) || listen(server, 1024)) die("listen: %s", strerror(errno));
    getsockname(server, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return server;
}

static void watch(int poll, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
}

int main(int argc, char **argv) {
    if (argc == 2) answer_size = (size_t)atol(argv[1]);
    if (answer_size < 4 || answer_size > ANSWERS) die("usage: frame_floor ANSWER_BYTES");
    for (size_t at = 0; at + answer_size <= ANSWERS; at += answer_size) put32(answers + at, (uint32_t)answer_size - 4);
    int server = listen_anywhere(), poll = epoll_create1(0), on = 1;
    watch(poll, server);
    watch(poll, 0);
    for (;;) {
        struct epoll_event events[64];
        int count = epoll_wait(poll, events, 64, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == 0) return 0;
            if (fd != server) {
                answer(fd);
                continue;
            }
            int accepted = accept(server, NULL, NULL);
            if (accepted < 0 || accepted >= CONNECTIONS) die("too many connections");
            setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            watch(poll, accepted);
        }
    }
}
