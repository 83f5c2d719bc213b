/* Included before every source of the library: what it shares with the daemon gets names of its own, so that the static
 * library cannot clash with a program's own functions. Nothing of this is exported. */
#ifndef OUTBOX_PRIVATE_H
#define OUTBOX_PRIVATE_H

#define clock_us            outbox_private_clock_us
#define clock_ms            outbox_private_clock_ms
#define clock_wall_ms       outbox_private_clock_wall_ms
#define clock_left_ms       outbox_private_clock_left_ms
#define ulid_generator_init outbox_private_ulid_generator_init
#define ulid_generate       outbox_private_ulid_generate
#define ulid_generate_at    outbox_private_ulid_generate_at
#define ulid_encode         outbox_private_ulid_encode
#define ulid_decode         outbox_private_ulid_decode

#endif
