/* Named points at which a test kills, stops or delays the daemon: `OUTBOXD_SEAM=name:nth:action`, action
 * kill (SIGKILL), stop (SIGSTOP) or sleepMS; nth counts passes of that seam in the process from 1, 0 = every pass.
 * Compiled in only with the build option `seams`; else nothing remains of them. */
#ifndef OUTBOXD_SEAM_H
#define OUTBOXD_SEAM_H

#include <stdbool.h>

#ifdef OUTBOXD_SEAMS
void seam(const char *name);
bool seam_armed(const char *name); /* this seam is the one that is named */
#else
#define seam(name)       ((void)0)
#define seam_armed(name) false
#endif

#endif
