/* The Kafka side of a consumer: polls letters into the hand, pauses what waits too much, commits what is settled. */
#ifndef OUTBOXD_INTAKE_H
#define OUTBOXD_INTAKE_H

#include "consumer.h"
#include "duty.h"
#include "hand.h"
#include "metrics.h"

struct intake {
    const struct config *config;
    struct duty *duty;
    struct metrics *metrics;
    struct consumer *consumer; /* NULL: not made */
    struct hand hand;
    bool hushed; /* every partition is paused, because nothing can be worked on now */
    int assigned;
    int64_t committed_at, gauged_at; /* clock_ms */
};

void intake_init(struct intake *intake, const struct config *config, struct duty *duty, struct metrics *metrics);

/* Makes the consumer, waits for Kafka (RETRY: not there within a second or two), joins the group. */
enum result intake_open(struct intake *intake, struct error *err) CHECK_RESULT;
/* Commits what is settled, leaves the group, drops what is in hand. */
void intake_close(struct intake *intake);
void intake_done(struct intake *intake);

/* Polls until the hand has `enough` messages ready, or nothing comes at the moment (false). */
bool intake_poll(struct intake *intake, size_t enough);

/* While nothing can be worked on: keeps the place in the group, and when the hand has enough takes in nothing more. To be
 * called every second or so; ends with intake_resume. */
void intake_hush(struct intake *intake, size_t enough);
void intake_resume(struct intake *intake);

/* After a batch and while idle: bounds what waits, commits offsets and sets the gauges at times. */
void intake_tend(struct intake *intake);

#endif
