#include "sdnotify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "parse.h"

void sdnotify(const char *format, ...)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[1024];
    va_list args;

    if (path == NULL || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof address.sun_path)
        return;
    va_start(args, format);
    int len = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (len < 0)
        return;
    size_t path_len = strlen(path);
    memcpy(address.sun_path, path, path_len);
    if (path[0] == '@')
        address.sun_path[0] = '\0'; /* the abstract namespace */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    /* A manager that does not listen is its own problem; we go on. */
    (void)!sendto(fd, text, len < (int)sizeof text ? (size_t)len : sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT,
                  (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + path_len));
    close(fd);
}

int64_t sdnotify_watchdog_ms(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    int64_t value, whose;

    if (usec == NULL || !parse_int(usec, &value) || value <= 0)
        return 0;
    if (pid != NULL && parse_int(pid, &whose) && whose != getpid())
        return 0;
    return value / 1000 > 0 ? value / 1000 : 1;
}
