#include "http.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "http_visitors.h"
#include "log.h"
#include "metrics.h"

#define BACKLOG       128
#define MEMORY_LIMIT  ((size_t)16 * 1024) /* of a connection: request line, headers, answer's headers */
#define QUIET_SECONDS 60
#define WEED_MS       1000
#define CROWDED_MS    20
#define REASON_MAX    1024
#define TEXT_TYPE     "text/plain; charset=utf-8"
#define METRICS_TYPE  "text/plain; version=0.0.4; charset=utf-8"
#define JSON_TYPE     "application/json"

struct http {
    struct MHD_Daemon *daemon;
    struct http_source source;
    char *token; /* NULL: none asked for */
    struct visitors visitors;
    int stop_fd;
    pthread_t thread;
};

/* --- pages --- */

struct page {
    unsigned status;
    const char *type;
    struct strbuf text;
};

static void healthz_page(struct http *http, struct page *page)
{
    (void)http;
    strbuf_add(&page->text, "ok\n");
}

static void readyz_page(struct http *http, struct page *page)
{
    char reason[REASON_MAX] = "";
    bool ready = http->source.ready(http->source.arg, reason, sizeof reason);
    page->status = ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
    strbuf_addf(&page->text, "%s\n", ready ? "ready" : reason);
}

static void metrics_page(struct http *http, struct page *page)
{
    page->type = METRICS_TYPE;
    http->source.gauges(http->source.arg);
    metrics_print(&page->text);
}

static void status_page(struct http *http, struct page *page)
{
    page->type = JSON_TYPE;
    http->source.status(http->source.arg, &page->text);
    strbuf_add(&page->text, "\n");
}

static const struct {
    const char *path;
    bool open; /* also without the token */
    void (*make)(struct http *http, struct page *page);
} pages[] = {
    {"/healthz", true, healthz_page},
    {"/readyz", true, readyz_page},
    {"/metrics", false, metrics_page},
    {"/status", false, status_page},
};

/* --- answering --- */

/* Takes as long for a wrong token as for the right one, however much of it is right. */
static bool same_secret(const char *given, const char *secret)
{
    size_t given_len = strlen(given), len = strlen(secret);
    unsigned difference = given_len != len;
    for (size_t i = 0; i < given_len; i++)
        difference |= (unsigned char)given[i] ^ (unsigned char)secret[len > 0 ? i % len : 0];
    return difference == 0;
}

static bool authorized(const struct http *http, struct MHD_Connection *connection)
{
    static const char scheme[] = "Bearer ";
    if (http->token == NULL)
        return true;
    const char *given = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    return given != NULL && strncasecmp(given, scheme, strlen(scheme)) == 0 &&
           same_secret(given + strlen(scheme), http->token);
}

static enum MHD_Result reply(struct MHD_Connection *connection, struct page *page, const char *header,
                             const char *value)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        page->text.len, page->text.data ? page->text.data : (void *)"", MHD_RESPMEM_MUST_COPY);
    if (response == NULL)
        return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, page->type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (header != NULL)
        MHD_add_response_header(response, header, value);
    enum MHD_Result result = MHD_queue_response(connection, page->status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned status, const char *text, const char *header,
                              const char *value)
{
    struct page page = {.status = status, .type = TEXT_TYPE};
    strbuf_addf(&page.text, "%s\n", text);
    enum MHD_Result result = reply(connection, &page, header, value);
    strbuf_done(&page.text);
    return result;
}

static enum MHD_Result answer(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **request)
{
    static int seen;
    struct http *http = arg;
    (void)version, (void)upload;
    if (!str_eq(method, MHD_HTTP_METHOD_GET) && !str_eq(method, MHD_HTTP_METHOD_HEAD))
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD", MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    if (*upload_size > 0)
        return MHD_NO; /* a GET has no body: close */
    if (*request == NULL) {
        *request = &seen; /* the headers are here; MHD calls again when the request is whole */
        return MHD_YES;
    }
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (info != NULL && info->socket_context != NULL)
        visitor_served(info->socket_context);

    size_t i = 0;
    while (i < ARRAY_LEN(pages) && !str_eq(url, pages[i].path))
        i++;
    if ((i == ARRAY_LEN(pages) || !pages[i].open) && !authorized(http, connection))
        return refuse(connection, MHD_HTTP_UNAUTHORIZED, "this page asks for the token of OUTBOX_HTTP_TOKEN",
                      MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer realm=\"outboxd\"");
    if (i == ARRAY_LEN(pages))
        return refuse(connection, MHD_HTTP_NOT_FOUND, "there are /healthz, /readyz, /metrics and /status", NULL, NULL);
    struct page page = {.status = MHD_HTTP_OK, .type = TEXT_TYPE};
    pages[i].make(http, &page);
    enum MHD_Result result = reply(connection, &page, NULL, NULL);
    strbuf_done(&page.text);
    return result;
}

static void come_and_go(void *arg, struct MHD_Connection *connection, void **visitor,
                        enum MHD_ConnectionNotificationCode what)
{
    struct http *http = arg;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*visitor != NULL)
            visitors_leave(&http->visitors, *visitor);
        return;
    }
    /* One at a time: the next answer may stand where this one did (libmicrohttpd 1.0). */
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    int fd = info != NULL ? info->connect_fd : -1;
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (fd >= 0 && info != NULL)
        *visitor = visitors_enter(&http->visitors, fd, info->client_addr);
}

/* --- listening --- */

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24) == 127;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

static int bind_to(const struct addrinfo *info)
{
    int one = 1;
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static enum result listen_on(const struct config *config, int *ret_fd, struct error *err)
{
    _cleanup_(str_free) char *host = str_dup(config->http_listen);
    char *port = strrchr(host, ':'); /* check_listen has seen to the form */
    *port++ = '\0';
    const char *name = host;
    if (host[0] == '[') {
        name++;
        host[strlen(host) - 1] = '\0';
    }
    struct addrinfo *info = NULL;
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    int failure = getaddrinfo(name, port, &hints, &info);
    if (failure != 0) {
        error_fatal(err, "OUTBOX_HTTP_LISTEN=%s: %s", config->http_listen, gai_strerror(failure));
        error_hint(err, "give an address of this host, like 127.0.0.1:9464, or off");
        return FATAL;
    }
    enum result result = OK;
    if (config->http_token == NULL && !is_loopback(info->ai_addr)) {
        result =
            error_fatal(err, "OUTBOX_HTTP_LISTEN=%s can be reached from other hosts, and OUTBOX_HTTP_TOKEN is not set",
                        config->http_listen);
        error_hint(err, "set OUTBOX_HTTP_TOKEN (or OUTBOX_HTTP_TOKEN_FILE), or listen on 127.0.0.1");
    } else if ((*ret_fd = bind_to(info)) < 0) {
        result = error_fatal(err, "cannot listen on OUTBOX_HTTP_LISTEN=%s: %s", config->http_listen, strerror(errno));
        error_hint(err,
                   "each daemon on a host needs a port of its own: set OUTBOX_HTTP_LISTEN to another one, or to off");
    }
    freeaddrinfo(info);
    return result;
}

static void tell_address(int fd)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    char host[64], port[8];
    if (getsockname(fd, (struct sockaddr *)&address, &len) == 0 &&
        getnameinfo((struct sockaddr *)&address, len, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        log_info(strchr(host, ':') ? "listening on http://[%s]:%s" : "listening on http://%s:%s", host, port);
}

/* --- the thread --- */

static void *serve(void *arg)
{
    struct http *http = arg;
    int epoll_fd = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    int64_t weeded = 0;
    pthread_setname_np(pthread_self(), "http");
    for (;;) {
        int64_t weed_ms = visitors_crowded(&http->visitors) ? CROWDED_MS : WEED_MS;
        MHD_UNSIGNED_LONG_LONG wait_ms = 0;
        if (MHD_get_timeout(http->daemon, &wait_ms) != MHD_YES || wait_ms > (MHD_UNSIGNED_LONG_LONG)weed_ms)
            wait_ms = (MHD_UNSIGNED_LONG_LONG)weed_ms;
        struct pollfd fds[] = {{epoll_fd, POLLIN, 0}, {http->stop_fd, POLLIN, 0}};
        (void)poll(fds, ARRAY_LEN(fds), (int)wait_ms);
        if (fds[1].revents)
            return NULL;
        MHD_run(http->daemon);
        if (clock_ms() - weeded >= weed_ms) {
            visitors_weed(&http->visitors);
            weeded = clock_ms();
        }
    }
}

enum result http_start(const struct config *config, const struct http_source *source, struct http **ret,
                       struct error *err)
{
    int fd = -1;
    *ret = NULL;
    if (str_eq(config->http_listen, "off"))
        return OK;
    enum result result = listen_on(config, &fd, err);
    if (result != OK)
        return result;
    struct http *http = mem_alloc(sizeof *http);
    http->source = *source;
    http->token = config->http_token ? str_dup(config->http_token) : NULL;
    visitors_init(&http->visitors);
    http->stop_fd = eventfd(0, EFD_CLOEXEC);
    tell_address(fd);
    http->daemon = MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, answer, http, MHD_OPTION_LISTEN_SOCKET, fd,
                                    MHD_OPTION_CONNECTION_LIMIT, (unsigned)ARRAY_LEN(http->visitors.all),
                                    MHD_OPTION_CONNECTION_MEMORY_LIMIT, MEMORY_LIMIT, MHD_OPTION_CONNECTION_TIMEOUT,
                                    (unsigned)QUIET_SECONDS, MHD_OPTION_STRICT_FOR_CLIENT, 1,
                                    MHD_OPTION_NOTIFY_CONNECTION, come_and_go, http, MHD_OPTION_END);
    int failure = http->daemon == NULL ? ENOMEM : pthread_create(&http->thread, NULL, serve, http);
    if (failure != 0) {
        if (http->daemon != NULL)
            MHD_stop_daemon(http->daemon); /* closes fd */
        else
            close(fd);
        close(http->stop_fd);
        free(http->token);
        free(http);
        return error_fatal(err, "cannot start the HTTP server: %s", strerror(failure));
    }
    *ret = http;
    return OK;
}

void http_stop(struct http *http)
{
    uint64_t one = 1;
    if (http == NULL)
        return;
    while (write(http->stop_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
    pthread_join(http->thread, NULL);
    MHD_stop_daemon(http->daemon);
    close(http->stop_fd);
    free(http->token);
    free(http);
}
