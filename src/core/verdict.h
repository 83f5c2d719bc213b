/* What became of one event (docs/ARCHITECTURE.md, "Verdicts"). Ordered: for an event with several topics the
 * greatest verdict of its topics counts. */
#ifndef OUTBOXD_VERDICT_H
#define OUTBOXD_VERDICT_H

enum verdict {
    VERDICT_NONE = 0, /* not decided yet */
    VERDICT_SENT,     /* acknowledged by the broker(s) */
    VERDICT_LEFT,     /* nobody's fault, or the world's: no write, it is tried again */
    VERDICT_HELD,     /* waits behind an earlier unfinished row of its stream, or behind its parked topic */
    VERDICT_PARK,     /* its topic cannot be written to: event->blame becomes parked, the event is held */
    VERDICT_REFUSED,  /* refused while alone: an attempt counts */
    VERDICT_DEAD,     /* can never be sent: DEAD at once */
};

const char *verdict_name(enum verdict verdict);

#endif
