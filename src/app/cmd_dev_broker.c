/* dev-broker: librdkafka's in-memory Kafka for a laptop or a demo, in one process.
 *
 * The mock cluster picks its own port. With --listen we accept there and pass the bytes on to it: a client only makes its
 * first connection this way and then follows the address that the cluster tells, which is why this serves the own
 * machine only. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "app.h"
#include "mock.h"
#include "parse.h"
#include "str.h"

#define PAIRS_MAX 64

struct pair { /* a client, and our connection to the cluster for it */
    int client, cluster;
};

struct forwarder {
    int listener; /* -1: none */
    const char *target;
    struct pair pairs[PAIRS_MAX];
    size_t n;
};

/* "HOST:PORT" into its halves; the host may stand in brackets. False: it is not that. */
static bool split_address(const char *text, char host[64], char port[16])
{
    const char *colon = strrchr(text, ':');
    int64_t number;

    if (!colon || colon == text || (size_t)(colon - text) >= 64 || strlen(colon + 1) > 5 ||
        !parse_int(colon + 1, &number) || number < 1 || number > 65535)
        return false;
    size_t len = (size_t)(colon - text);
    bool bracketed = text[0] == '[' && text[len - 1] == ']' && len > 2;
    memcpy(host, text + bracketed, len - 2 * bracketed);
    host[len - 2 * bracketed] = '\0';
    snprintf(port, 16, "%s", colon + 1);
    return true;
}

static bool is_loopback(const char *host)
{
    return str_eq(host, "127.0.0.1") || str_eq(host, "localhost") || str_eq(host, "::1");
}

static int open_socket(const char *address, bool listening, struct error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char host[64], port[16];
    int fd = -1, one = 1;

    if (!split_address(address, host, port) || getaddrinfo(host, port, &hints, &found) != 0) {
        error_fatal(err, "%s is no address", address);
        return -1;
    }
    fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
    if (fd >= 0 && listening)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (fd < 0 || (listening ? bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 16)
                             : connect(fd, found->ai_addr, found->ai_addrlen))) {
        error_fatal(err, "cannot %s %s: %s", listening ? "listen on" : "connect to", address, strerror(errno));
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

static void accept_client(struct forwarder *forwarder)
{
    struct error err = {0};
    int client = accept4(forwarder->listener, NULL, NULL, SOCK_CLOEXEC);

    if (client < 0)
        return;
    int cluster = forwarder->n < PAIRS_MAX ? open_socket(forwarder->target, false, &err) : -1;
    if (cluster < 0) {
        close(client);
        return;
    }
    forwarder->pairs[forwarder->n++] = (struct pair){client, cluster};
}

/* What is there, once; false: that side has gone. */
static bool pass_on(int from, int to)
{
    char bytes[65536];
    ssize_t n = recv(from, bytes, sizeof(bytes), 0);

    if (n <= 0)
        return false;
    for (ssize_t sent = 0; sent < n;) {
        ssize_t k = send(to, bytes + sent, (size_t)(n - sent), MSG_NOSIGNAL);
        if (k <= 0)
            return false;
        sent += k;
    }
    return true;
}

static void close_pair(struct forwarder *forwarder, size_t i)
{
    close(forwarder->pairs[i].client);
    close(forwarder->pairs[i].cluster);
    forwarder->pairs[i] = forwarder->pairs[--forwarder->n];
}

/* Until a signal arrives at `signals`. */
static void serve(struct forwarder *forwarder, int signals)
{
    for (;;) {
        struct pollfd fds[2 + 2 * PAIRS_MAX] = {{.fd = signals, .events = POLLIN},
                                                {.fd = forwarder->listener, .events = POLLIN}};
        size_t n = forwarder->n;
        for (size_t i = 0; i < n; i++) {
            fds[2 + 2 * i] = (struct pollfd){.fd = forwarder->pairs[i].client, .events = POLLIN};
            fds[3 + 2 * i] = (struct pollfd){.fd = forwarder->pairs[i].cluster, .events = POLLIN};
        }
        if (poll(fds, 2 + 2 * n, -1) < 0 && errno != EINTR)
            return;
        if (fds[0].revents)
            return;
        for (size_t i = n; i-- > 0;) {
            struct pair pair = forwarder->pairs[i];
            if ((fds[2 + 2 * i].revents && !pass_on(pair.client, pair.cluster)) ||
                (fds[3 + 2 * i].revents && !pass_on(pair.cluster, pair.client)))
                close_pair(forwarder, i);
        }
        if (fds[1].revents)
            accept_client(forwarder);
    }
}

static int run(const char *address)
{
    struct forwarder forwarder = {.listener = -1};
    struct mock *mock = NULL;
    struct error err = {0};
    sigset_t stop;

    /* Blocked before librdkafka makes threads, so that the signal comes to us and to nobody else. */
    sigemptyset(&stop);
    sigaddset(&stop, SIGINT);
    sigaddset(&stop, SIGTERM);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    int signals = signalfd(-1, &stop, SFD_CLOEXEC);

    if (address && (forwarder.listener = open_socket(address, true, &err)) < 0) {
        app_complain(&err);
        return EXIT_FAILED;
    }
    if (signals < 0 || mock_new(1, &mock, &err) != OK) {
        app_complain(&err);
        return EXIT_FAILED;
    }
    forwarder.target = mock_bootstrap(mock);
    printf("listening on %s\n", address ? address : forwarder.target);
    printf("in memory, for demos only: four partitions a topic, made when first asked for; nothing is kept\n");
    fflush(stdout);
    serve(&forwarder, signals);

    while (forwarder.n)
        close_pair(&forwarder, 0);
    if (forwarder.listener >= 0)
        close(forwarder.listener);
    close(signals);
    mock_free(mock);
    return EXIT_OK;
}

int cmd_dev_broker(int argc, char **argv)
{
    const char *address = NULL;
    char host[64], port[16];

    for (int i = 1; i < argc; i++) {
        if (str_eq(argv[i], "--listen") && i + 1 < argc)
            address = argv[++i];
        else if (str_has_prefix(argv[i], "--listen="))
            address = argv[i] + strlen("--listen=");
        else
            return app_usage("dev-broker", "\"%s\" is not understood", argv[i]);
    }
    if (address && !split_address(address, host, port))
        return app_usage("dev-broker", "\"%s\" is not HOST:PORT", address);
    if (address && !is_loopback(host))
        return app_usage("dev-broker",
                         "%s is not this machine: an in-memory broker is for demos, and listens on 127.0.0.1 only",
                         host);
    return app_finish(run(address));
}
