/* TLS 1.3 of a client, by the system's OpenSSL 3. The library is opened when a program needs it, so that the programs
 * compile and run without it. Certificates are not checked: the programs measure servers that they have started.
 * https://docs.openssl.org/3.0/man7/ssl/ */
#ifndef FLAKELOG_TLS_H
#define FLAKELOG_TLS_H

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "common.h"

enum { TLS_1_3 = 0x0304, SET_MIN_PROTO_VERSION = 123, SET_MODE = 33 };
enum { WANT_READ = 2, WANT_WRITE = 3, MOVING_BUFFER = 2 };

static struct {
    void *context;
    void *(*new_session)(void *);
    int (*set_fd)(void *, int);
    int (*connect)(void *);
    int (*read)(void *, void *, int);
    int (*write)(void *, const void *, int);
    int (*error)(const void *, int);
} tls;

static inline void *tls_symbol(void *library, const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol) die("libssl.so.3 has no %s", name);
    return symbol;
}

static inline void tls_begin(void) {
    void *library = dlopen("libssl.so.3", RTLD_NOW);
    if (!library) die("%s", dlerror());
    void *(*method)(void) = tls_symbol(library, "TLS_client_method");
    void *(*new_context)(void *) = tls_symbol(library, "SSL_CTX_new");
    long (*control)(void *, int, long, void *) = tls_symbol(library, "SSL_CTX_ctrl");
    tls.new_session = tls_symbol(library, "SSL_new");
    tls.set_fd = tls_symbol(library, "SSL_set_fd");
    tls.connect = tls_symbol(library, "SSL_connect");
    tls.read = tls_symbol(library, "SSL_read");
    tls.write = tls_symbol(library, "SSL_write");
    tls.error = tls_symbol(library, "SSL_get_error");
    tls.context = new_context(method());
    control(tls.context, SET_MIN_PROTO_VERSION, TLS_1_3, NULL);
    control(tls.context, SET_MODE, MOVING_BUFFER, NULL);
}

/* Shake hands over a connected socket. Afterwards the socket does not block. */
static inline void *tls_connect(int fd) {
    void *session = tls.new_session(tls.context);
    tls.set_fd(session, fd);
    if (tls.connect(session) != 1) die("the TLS handshake failed");
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    return session;
}

/* As recv with MSG_DONTWAIT: -1 and EAGAIN if nothing is there. */
static inline ssize_t tls_receive(void *session, void *into, size_t room) {
    int got = tls.read(session, into, (int)room);
    if (got > 0) return got;
    int error = tls.error(session, got);
    if (error != WANT_READ && error != WANT_WRITE) return 0;
    errno = EAGAIN;
    return -1;
}

/* As send on a socket that blocks. */
static inline ssize_t tls_send(void *session, const void *from, size_t size) {
    int sent;
    while ((sent = tls.write(session, from, (int)size)) <= 0) {
        int error = tls.error(session, sent);
        if (error != WANT_READ && error != WANT_WRITE) return -1;
    }
    return sent;
}

#endif
