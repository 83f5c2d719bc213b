#include <stdbool.h>
#include <string.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "http_visitors.h"

#include "clock.h"
#include "str.h"

#define REQUEST_MS 10000 /* a request must be whole by then */
#define GRACE_MS   300   /* time to send a request before a newcomer may take the place */
#define IDLE_MS    60000 /* a connection that was served may stay for the next scrape */

void visitors_init(struct visitors *visitors)
{
    for (size_t i = 0; i < ARRAY_LEN(visitors->all); i++)
        visitors->all[i].fd = -1;
}

static void address_of(const struct sockaddr *address, uint8_t ret[16])
{
    memset(ret, 0, 16);
    if (address->sa_family == AF_INET6)
        memcpy(ret, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, 16);
    else if (address->sa_family == AF_INET)
        memcpy(ret, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
}

/* MHD sees the end of the stream and closes the descriptor itself; until then the number is not free for another use. */
static void send_away(struct visitor *visitor)
{
    shutdown(visitor->fd, SHUT_RDWR);
    visitor->since = MS_FOREVER; /* not the quietest any more */
}

static bool is_here(const struct visitor *visitor)
{
    return visitor->fd >= 0 && visitor->since != MS_FOREVER;
}

struct visitor *visitors_enter(struct visitors *visitors, int fd, const struct sockaddr *address)
{
    struct visitor *visitor = visitors->all;
    while (visitor->fd >= 0) /* MHD lets in no more than there is room for */
        visitor++;
    *visitor = (struct visitor){.fd = fd, .since = clock_ms()};
    address_of(address, visitor->ip);
    visitors->n++;
    return visitor;
}

void visitors_leave(struct visitors *visitors, struct visitor *visitor)
{
    visitor->fd = -1;
    visitors->n--;
}

void visitor_served(struct visitor *visitor)
{
    if (visitor->since == MS_FOREVER)
        return;
    visitor->served = true;
    visitor->since = clock_ms();
}

bool visitors_crowded(const struct visitors *visitors)
{
    return visitors->n > VISITORS_PER_IP_MAX;
}

static int count(const struct visitors *visitors, const uint8_t *ip)
{
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(visitors->all); i++)
        n += is_here(&visitors->all[i]) && (ip == NULL || memcmp(visitors->all[i].ip, ip, 16) == 0);
    return n;
}

/* Whoever has been quiet longest among those that are too many: of one address, or in all. NULL: nobody has to go. */
static struct visitor *one_too_many(struct visitors *visitors, int64_t now)
{
    struct visitor *quietest = NULL;
    bool full = count(visitors, NULL) > VISITORS_MAX;
    for (size_t i = 0; i < ARRAY_LEN(visitors->all); i++) {
        struct visitor *visitor = &visitors->all[i];
        if (is_here(visitor) && now - visitor->since > GRACE_MS &&
            (quietest == NULL || visitor->since < quietest->since) &&
            (full || count(visitors, visitor->ip) > VISITORS_PER_IP_MAX))
            quietest = visitor;
    }
    return quietest;
}

void visitors_weed(struct visitors *visitors)
{
    int64_t now = clock_ms();
    for (size_t i = 0; i < ARRAY_LEN(visitors->all); i++) {
        struct visitor *visitor = &visitors->all[i];
        if (is_here(visitor) && now - visitor->since > (visitor->served ? IDLE_MS : REQUEST_MS))
            send_away(visitor);
    }
    struct visitor *visitor;
    while (visitors_crowded(visitors) && (visitor = one_too_many(visitors, now)) != NULL)
        send_away(visitor);
}
