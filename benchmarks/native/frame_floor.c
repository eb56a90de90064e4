/* frame_floor REPLY_BYTES
 *
 * What any server on one core can reach: epoll, recv, send, nothing else. Reads frames (four bytes of length, then so
 * many bytes) and answers each with a frame of REPLY_BYTES in all. Prints its port, serves until standard input ends. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"

enum { BUFFER = 1 << 18, CONNECTIONS = 1024, REPLIES = 1 << 18 };

static unsigned char buffers[CONNECTIONS][BUFFER];
static size_t filled[CONNECTIONS];
static char replies[REPLIES];
static size_t reply_size;

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
        uint32_t length;
        memcpy(&length, buffers[fd] + begin, 4);
        size_t size = 4 + (size_t)ntohl(length);
        if (filled[fd] - begin < size) break;
        begin += size;
        ready += reply_size;
    }
    memmove(buffers[fd], buffers[fd] + begin, filled[fd] - begin);
    filled[fd] -= begin;
    for (size_t done = 0; done < ready;) {
        size_t size = ready - done < REPLIES / reply_size * reply_size ? ready - done : REPLIES / reply_size * reply_size;
        ssize_t sent = send(fd, replies, size, MSG_NOSIGNAL);
        if (sent < 0) return; /* it went away; the next recv says so */
        done += (size_t)sent;
        if ((size_t)sent != size) die("a reader that does not read is not this program's business");
    }
}

int main(int argc, char **argv) {
    if (argc != 2 || (reply_size = (size_t)atol(argv[1])) < 4 || reply_size > REPLIES) die("usage: frame_floor BYTES");
    uint32_t length = htonl((uint32_t)(reply_size - 4));
    for (size_t at = 0; at + reply_size <= REPLIES; at += reply_size) memcpy(replies + at, &length, 4);
    int server = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(server, (struct sockaddr *)&address, size) || listen(server, 1024)) die("listen: %s", strerror(errno));
    getsockname(server, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    int poll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = server};
    epoll_ctl(poll, EPOLL_CTL_ADD, server, &event);
    event.data.fd = 0;
    epoll_ctl(poll, EPOLL_CTL_ADD, 0, &event);
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
            event.data.fd = accepted;
            epoll_ctl(poll, EPOLL_CTL_ADD, accepted, &event);
        }
    }
}
