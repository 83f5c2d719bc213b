/* Who is connected, and since when it has been quiet: what MHD's own limits do not do. MHD refuses newcomers when an address has
 * too many, and counts every byte as activity; here whoever was quiet longest has to go, and only a whole request counts. */
#ifndef OUTBOXD_HTTP_VISITORS_H
#define OUTBOXD_HTTP_VISITORS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define VISITORS_MAX        192
#define VISITORS_PER_IP_MAX 64

struct visitor {
    int fd; /* -1: free */
    uint8_t ip[16];
    int64_t since; /* clock_ms of the connection or of its last whole request */
    bool served;
};

struct visitors {                          /* of one thread */
    struct visitor all[VISITORS_MAX + 64]; /* with those that were sent away and have not gone yet */
    int n;
};

void visitors_init(struct visitors *visitors);
struct visitor *visitors_enter(struct visitors *visitors, int fd, const struct sockaddr *address);
void visitors_leave(struct visitors *visitors, struct visitor *visitor);
void visitor_served(struct visitor *visitor);

/* Sends away who is too slow, and who was quiet longest when there are too many; about once a second, or a few times more while
 * it is crowded. */
void visitors_weed(struct visitors *visitors);
bool visitors_crowded(const struct visitors *visitors);

#endif
